// Rows from and to Arrow's buffers, for Spark: many messages with one call.
//
// `Letters` builds messages from Arrow columns and sends them; `Receipts` counts their receipts;
// `Reading` receives messages and appends what they have to columns. This module is not linked with
// pulsar-client's library: see reach.hpp.
//
// Rules that keep it safe:
// - The callbacks never touch Python. They own what they use: it stays alive if a task gives up.
// - Nobody uses an object while another thread builds, sends or receives with it: it is refused.
// - Offsets come from outside, so they are compared with the length of the data.

#include "reach.hpp"

#include <cxxabi.h>

#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using pulsar::Reader;

// The library's functions that this module needs.
struct Library : Common {
    std::int64_t (*schema_version)(const Message*);
    MessageBuilder& (*set_property)(MessageBuilder*, const std::string&, const std::string&);
    MessageBuilder& (*set_sequence)(MessageBuilder*, std::int64_t);
    Result (*read_next)(Reader*, Message&, int);
} library;

PyObject* message_type;
PyObject* producer_type;
PyObject* reader_type;
PyTypeObject* columns_type;
PyTypeObject* receipts_type;
PyTypeObject* letters_type;
PyTypeObject* reading_type;

constexpr const char* READER = "N6pulsar6ReaderE";

// Makes *object* busy as long as this exists, while the interpreter's lock may be released.
struct Busy {
    bool& flag;
    const bool mine;
    explicit Busy(bool& flag) : flag(flag), mine(!flag) {
        if (mine)
            flag = true;
        else
            PyErr_SetString(PyExc_RuntimeError, "another thread uses this object");
    }
    ~Busy() {
        if (mine) flag = false;
    }
};

// Runs *work* without the interpreter's lock; false with an exception set if it has thrown one.
template <class Work>
bool without_python(Work work) {
    std::string problem;
    Py_BEGIN_ALLOW_THREADS
    try {
        work();
    } catch (abi::__forced_unwind&) {
        throw;  // the thread is being ended
    } catch (const std::exception& error) {
        problem = error.what();
        if (problem.empty()) problem = "an error without a text";
    } catch (...) {
        problem = "pulsar-client's library has raised an exception";
    }
    Py_END_ALLOW_THREADS
    if (problem.empty()) return true;
    PyErr_SetString(PyExc_RuntimeError, problem.c_str());
    return false;
}

// -- Columns: what is sent -----------------------------------------------------------------------

// A buffer of Arrow's, or none.
struct Buffer {
    Py_buffer view{};
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    ~Buffer() {
        if (view.obj != nullptr) PyBuffer_Release(&view);
    }
    bool open(PyObject* object) {
        return object == Py_None || PyObject_GetBuffer(object, &view, PyBUF_SIMPLE) == 0;
    }
};

struct Slice {
    const char* data;
    std::size_t size;
};

// A column of texts or bytes (Arrow's large types), or one of whole numbers (without *offsets*).
struct Column {
    Buffer validity, offsets, data;
    std::int64_t start = 0, rows = 0;

    // Tells whether the buffers are large enough, and all offsets inside the data.
    bool is_sound() const {
        if (start < 0 || rows < 0 || start > std::numeric_limits<std::int32_t>::max() ||
            rows > std::numeric_limits<std::int32_t>::max())
            return false;
        std::int64_t end = start + rows;
        if (validity.view.obj != nullptr && validity.view.len < (end + 7) / 8) return false;
        if (offsets.view.obj == nullptr) return data.view.len >= end * 8;
        if (offsets.view.len < (end + 1) * 8) return rows == 0;
        auto* places = static_cast<const std::int64_t*>(offsets.view.buf);
        std::int64_t last = places[start];
        if (last < 0) return false;
        for (std::int64_t each = start + 1; each <= end; ++each) {
            if (places[each] < last) return false;
            last = places[each];
        }
        return last <= data.view.len;
    }
    bool is_null(std::int64_t row) const {
        if (validity.view.obj == nullptr) return false;
        std::int64_t at = start + row;
        return (static_cast<const std::uint8_t*>(validity.view.buf)[at >> 3] >> (at & 7) & 1) == 0;
    }
    Slice bytes(std::int64_t row) const {
        auto* place = static_cast<const std::int64_t*>(offsets.view.buf) + start + row;
        return {static_cast<const char*>(data.view.buf) + place[0], std::size_t(place[1] - place[0])};
    }
    std::int64_t number(std::int64_t row) const {
        return static_cast<const std::int64_t*>(data.view.buf)[start + row];
    }
};

// The first columns are those of a message; then come those of properties.
enum { PAYLOAD, KEY, ORDERING_KEY, EVENT_TIME, DELAY, FIRST_PROPERTY };

struct Frame {
    std::int64_t rows = 0;
    std::vector<std::unique_ptr<Column>> columns;  // null: no such column
};

struct Columns {
    PyObject_HEAD
    Frame* inner;
};

// Columns(rows, ((start, validity, offsets, data) or None, ...))
PyObject* columns_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    long long rows;
    PyObject* given;
    if (!PyArg_ParseTuple(arguments, "LO!", &rows, &PyTuple_Type, &given)) return nullptr;
    return guarded([=]() -> PyObject* {
        auto frame = std::make_unique<Frame>();
        frame->rows = rows;
        for (Py_ssize_t each = 0; each < PyTuple_Size(given); ++each) {
            PyObject* item = PyTuple_GetItem(given, each);
            if (item == Py_None) {
                frame->columns.emplace_back();
                continue;
            }
            auto column = std::make_unique<Column>();
            long long start;
            PyObject *validity, *offsets, *data;
            if (!PyTuple_Check(item)) {
                PyErr_SetString(PyExc_TypeError, "a column must be a tuple or None");
                return nullptr;
            }
            if (!PyArg_ParseTuple(item, "LOOO", &start, &validity, &offsets, &data) ||
                !column->validity.open(validity) || !column->offsets.open(offsets) ||
                !column->data.open(data))
                return nullptr;
            column->start = start;
            column->rows = rows;
            if (!column->is_sound() ||
                (each == EVENT_TIME || each == DELAY) != (column->offsets.view.obj == nullptr)) {
                PyErr_SetString(PyExc_ValueError, "a column's buffers do not fit");
                return nullptr;
            }
            frame->columns.push_back(std::move(column));
        }
        if (frame->columns.size() < FIRST_PROPERTY) {
            PyErr_SetString(PyExc_ValueError, "columns are missing");
            return nullptr;
        }
        auto* self = allocated<Columns>(type);
        if (self != nullptr) self->inner = frame.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

// -- Receipts --------------------------------------------------------------------------------------

struct Failure {
    std::shared_ptr<const std::string> topic;
    std::int64_t rows;
    int result;  // ResultOk: the rows were not in one batch
};

struct Counts {
    std::mutex mutex;
    std::condition_variable changed;
    std::int64_t rows = 0, duplicates = 0, wanted = 0;
    std::vector<Failure> failures;
    Clock::time_point last = Clock::now();

    void came(const std::shared_ptr<const std::string>& topic, std::int64_t count, Result result,
              const MessageId& id) noexcept {
        try {
            // Only the last row of a batch asks for a receipt; its place proves the whole batch.
            bool whole = result == ResultOk && std::max(library.batch(&id), 0) == count - 1;
            bool known = whole && library.ledger(&id) < 0;
            std::lock_guard<std::mutex> lock(mutex);
            last = Clock::now();
            if (whole) {
                rows += count;
                if (known) duplicates += count;
            } else {
                failures.push_back({topic, count, int(result)});
            }
            if (rows >= wanted || !whole) changed.notify_all();
        } catch (...) {
            // No memory: the receipt is missing, so the task fails at its time-out.
        }
    }
};

struct ReceiptsBox {
    std::shared_ptr<Counts> counts = std::make_shared<Counts>();
};

struct Receipts {
    PyObject_HEAD
    ReceiptsBox* inner;
};

PyObject* receipts_new(PyTypeObject* type, PyObject*, PyObject*) {
    return guarded([=]() -> PyObject* {
        auto box = std::make_unique<ReceiptsBox>();
        auto* self = allocated<Receipts>(type);
        if (self != nullptr) self->inner = box.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

// take(rows, timeout_ms) -> (rows, duplicates, [(topic, rows, result), ...]) since the last call
PyObject* receipts_take(PyObject* object, PyObject* arguments) {
    long long wanted, timeout;
    if (!PyArg_ParseTuple(arguments, "LL", &wanted, &timeout)) return nullptr;
    return guarded([=]() -> PyObject* {
        auto counts = reinterpret_cast<Receipts*>(object)->inner->counts;
        const auto began = Clock::now();
        const auto patience = std::chrono::milliseconds(std::max(0LL, timeout));
        std::int64_t rows = 0, duplicates = 0;
        std::vector<Failure> failures;
        for (bool waits = true; waits;) {
            bool done = without_python([&] {
                std::unique_lock<std::mutex> lock(counts->mutex);
                counts->wanted = wanted;
                auto until = std::min(std::max(began, counts->last) + patience,
                                      Clock::now() + std::chrono::milliseconds(100));
                counts->changed.wait_until(lock, until, [&] {
                    return counts->rows >= wanted || !counts->failures.empty();
                });
                waits = counts->rows < wanted && counts->failures.empty() &&
                        Clock::now() < std::max(began, counts->last) + patience;
                if (waits) return;
                rows = std::exchange(counts->rows, 0);
                duplicates = std::exchange(counts->duplicates, 0);
                failures.swap(counts->failures);
                counts->wanted = std::numeric_limits<std::int64_t>::max();
            });
            if (!done || PyErr_CheckSignals() != 0) return nullptr;
        }
        PyObject* list = PyList_New(0);
        for (auto& each : failures) {
            PyObject* item = Py_BuildValue("(s#Li)", each.topic->data(),
                                           Py_ssize_t(each.topic->size()),
                                           static_cast<long long>(each.rows), each.result);
            if (list == nullptr || item == nullptr || PyList_Append(list, item) != 0) {
                Py_XDECREF(item);
                Py_XDECREF(list);
                return nullptr;
            }
            Py_DECREF(item);
        }
        return Py_BuildValue("(LLN)", static_cast<long long>(rows),
                             static_cast<long long>(duplicates), list);
    });
}

// -- Letters ---------------------------------------------------------------------------------------

struct Built {
    std::vector<Message> messages;
    bool is_busy = false;
};

struct Letters {
    PyObject_HEAD
    Built* inner;
};

// A property of the rows: a constant, or a column. A row with a null there has no such property.
struct Property {
    std::string name, value;
    const Column* column = nullptr;
};

// Builds messages; its strings are used again for each row.
struct Builder {
    const Frame& frame;
    const std::vector<Property>& properties;
    std::uint64_t deliver_at;
    std::int64_t sequence;
    std::string text;

    const std::string& copied(const Slice& slice) {
        text.assign(slice.data, slice.size);
        return text;
    }
    Message build(std::int64_t row) {
        NewBuilder made(library);
        MessageBuilder* builder = made.get();
        auto given = [&](int which) -> const Column* {
            const Column* column = frame.columns[which].get();
            return column == nullptr || column->is_null(row) ? nullptr : column;
        };
        if (auto* payload = given(PAYLOAD)) {
            Slice slice = payload->bytes(row);
            library.set_content(builder, slice.data, slice.size);
        } else {
            library.set_null_value(builder);
        }
        for (auto& each : properties) {
            if (each.column == nullptr)
                library.set_property(builder, each.name, each.value);
            else if (!each.column->is_null(row))
                library.set_property(builder, each.name, copied(each.column->bytes(row)));
        }
        if (auto* key = given(KEY))
            if (key->bytes(row).size != 0) library.set_key(builder, copied(key->bytes(row)));
        if (auto* key = given(ORDERING_KEY))
            if (key->bytes(row).size != 0) library.set_ordering_key(builder, copied(key->bytes(row)));
        if (auto* time = given(EVENT_TIME))
            if (time->number(row) > 0) library.set_event_time(builder, time->number(row));
        if (deliver_at != 0) {
            auto* delay = given(DELAY);
            std::int64_t more = delay == nullptr ? 0 : std::max<std::int64_t>(0, delay->number(row));
            library.set_deliver_at(builder, deliver_at + std::uint64_t(more));
        }
        if (sequence != 0) library.set_sequence(builder, sequence + row);
        return library.build(builder);
    }
};

PyObject* letters_new(PyTypeObject* type, PyObject*, PyObject*) {
    return guarded([=]() -> PyObject* {
        auto built = std::make_unique<Built>();
        auto* self = allocated<Letters>(type);
        if (self != nullptr) self->inner = built.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

Py_ssize_t letters_length(PyObject* object) {
    return Py_ssize_t(reinterpret_cast<Letters*>(object)->inner->messages.size());
}

// append(message): one that pulsar-client's builder has built
PyObject* letters_append(PyObject* object, PyObject* message) {
    auto* built = reinterpret_cast<Letters*>(object)->inner;
    auto* raw = static_cast<Message*>(pointer_of(message, message_type, MESSAGE));
    if (raw == nullptr) return nullptr;
    Busy busy(built->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* {
        built->messages.push_back(*raw);
        Py_RETURN_NONE;
    });
}

bool read_text(PyObject* object, std::string& text) {
    Py_ssize_t size;
    const char* data = PyUnicode_AsUTF8AndSize(object, &size);
    if (data != nullptr) text.assign(data, size);
    return data != nullptr;
}

// Reads ((name, text or the number of a column), ...); false with an exception set.
bool read_plan(PyObject* plan, const Frame& frame, std::vector<Property>& properties) {
    for (Py_ssize_t each = 0; each < PyTuple_Size(plan); ++each) {
        PyObject *name, *value;
        PyObject* item = PyTuple_GetItem(plan, each);
        if (!PyTuple_Check(item)) {
            PyErr_SetString(PyExc_TypeError, "a property must be a tuple");
            return false;
        }
        if (!PyArg_ParseTuple(item, "UO", &name, &value)) return false;
        Property property;
        if (!read_text(name, property.name)) return false;
        if (PyLong_Check(value)) {
            long at = PyLong_AsLong(value);
            if (at < FIRST_PROPERTY || std::size_t(at) >= frame.columns.size() ||
                frame.columns[at] == nullptr) {
                if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "there is no such column");
                return false;
            }
            property.column = frame.columns[at].get();
        } else if (!read_text(value, property.value)) {
            return false;
        }
        properties.push_back(std::move(property));
    }
    return true;
}

// extend(columns, rows, plan, now_ms, sequence): build messages of *rows* (64-bit numbers). They are
// delivered at that time and the delay of their row; if it is 0, at once. The number of the first row
// of all is *sequence*; 0 for no numbers.
PyObject* letters_extend(PyObject* object, PyObject* arguments) {
    PyObject *source, *rows, *plan;
    unsigned long long deliver_at;
    long long sequence;
    if (!PyArg_ParseTuple(arguments, "O!OO!KL", columns_type, &source, &rows, &PyTuple_Type, &plan,
                          &deliver_at, &sequence))
        return nullptr;
    auto* built = reinterpret_cast<Letters*>(object)->inner;
    Busy busy(built->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* {
        const Frame& frame = *reinterpret_cast<Columns*>(source)->inner;
        std::vector<Property> properties;
        Buffer numbers;
        if (!numbers.open(rows) || !read_plan(plan, frame, properties)) return nullptr;
        auto* row = static_cast<const std::int64_t*>(numbers.view.buf);
        const std::int64_t count = numbers.view.len / 8;
        for (std::int64_t each = 0; each < count; ++each)
            if (row[each] < 0 || row[each] >= frame.rows) {
                PyErr_SetString(PyExc_IndexError, "there is no such row");
                return nullptr;
            }
        bool done = without_python([&] {
            Builder builder{frame, properties, deliver_at, sequence, {}};
            built->messages.reserve(built->messages.size() + count);
            for (std::int64_t each = 0; each < count; ++each)
                built->messages.push_back(builder.build(row[each]));
        });
        if (!done) return nullptr;
        Py_RETURN_NONE;
    });
}

// send(producer, receipts, topic, each): send all messages, and forget them. Each has a receipt, or
// only the last one, for all of them.
PyObject* letters_send(PyObject* object, PyObject* arguments) {
    PyObject *target, *counter;
    const char* topic;
    int each;
    if (!PyArg_ParseTuple(arguments, "OO!sp", &target, receipts_type, &counter, &topic, &each))
        return nullptr;
    auto* built = reinterpret_cast<Letters*>(object)->inner;
    auto* producer = static_cast<Producer*>(pointer_of(target, producer_type, PRODUCER));
    if (producer == nullptr) return nullptr;
    Busy busy(built->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* {
        auto counts = reinterpret_cast<Receipts*>(counter)->inner->counts;
        auto name = std::make_shared<const std::string>(topic);
        std::vector<Message> messages;
        messages.swap(built->messages);
        const auto count = std::int64_t(messages.size());
        bool done = without_python([&] {
            const SendCallback nothing = [](Result, const MessageId&) {};
            const std::int64_t covered = each ? 1 : count;
            const SendCallback receipt = [counts, name, covered](Result result, const MessageId& id) {
                counts->came(name, covered, result, id);
            };
            for (std::int64_t at = 0; at < count; ++at)
                library.send(producer, messages[at], each || at == count - 1 ? receipt : nothing);
            messages.clear();
        });
        if (!done) return nullptr;
        Py_RETURN_NONE;
    });
}

// first() -> the properties as pulsar-client would give them, of the first message; for a test.
PyObject* letters_first(PyObject* object, PyObject*) {
    auto* built = reinterpret_cast<Letters*>(object)->inner;
    if (built->messages.empty()) Py_RETURN_NONE;
    return described(library, built->messages.front());
}

// -- Reading: what is received -------------------------------------------------------------------

// A growing column of texts or bytes, in Arrow's layout with 32-bit offsets.
struct Texts {
    static constexpr std::size_t MOST_BYTES = INT32_MAX;

    std::vector<std::int32_t> offsets{0};
    std::string data;
    std::vector<std::uint8_t> validity;
    std::int64_t nulls = 0;

    void add(const void* bytes, std::size_t size, bool is_null = false) {
        if (size > MOST_BYTES - data.size()) throw std::length_error("a block has too many bytes");
        std::size_t row = offsets.size() - 1;
        if ((row & 7) == 0) validity.push_back(0);
        if (is_null)
            ++nulls;
        else
            validity[row >> 3] |= std::uint8_t(1 << (row & 7));
        data.append(static_cast<const char*>(bytes), size);
        offsets.push_back(std::int32_t(data.size()));
    }
    void add(const std::string& text) { add(text.data(), text.size()); }
    void add_null() { add("", 0, true); }
};

// A growing column of whole numbers.
struct Numbers {
    std::vector<std::int64_t> values;
    void add(std::int64_t value) { values.push_back(value); }
};

struct Block {
    std::int64_t rows = 0;
    std::size_t payload_bytes = 0, property_bytes = 0;  // the latter with the keys
    Texts payload, key, ordering_key, id;
    Numbers publish_time, event_time, schema_version;  // -1: no schema
    std::vector<Texts> wanted;  // the properties that have a column
    Texts names, values;        // the others
    std::vector<std::int32_t> places;
    std::vector<std::uint8_t> readable;  // one byte for each row
};

using Position = std::tuple<std::int64_t, std::int64_t, std::int64_t>;

// Why reading has ended.
enum Status { FULL, WAITING, AT_END, BEHIND_END, TOO_LATE, FIRST_IS_MISSING };

// The most bytes of properties in one block: 32-bit offsets have to suffice.
constexpr std::size_t MOST_PROPERTY_BYTES = 256 << 20;

struct Piece {
    std::string number;  // of the partition
    bool has_after = false, has_first = false, has_position = false, is_busy = false;
    Position after, first, end, position;
    std::int64_t until = -1;
    std::int64_t most_rows = 0, most_bytes = 0;  // of a block
    std::vector<std::string> wanted;             // sorted
    std::vector<std::size_t> order;   // of the wanted properties, as they were given
    std::unique_ptr<Block> block;

    void clear() {
        block = std::make_unique<Block>();
        block->wanted.resize(wanted.size());
    }

    // Takes a message, and tells whether reading goes on (`WAITING`).
    Status take(const Message& message) {
        const MessageId& id = library.id(&message);
        position = {library.ledger(&id), library.entry(&id), library.batch(&id)};
        has_position = true;
        if (until >= 0 && library.publish_time(&message) > std::uint64_t(until)) return TOO_LATE;
        if (position > end) return BEHIND_END;
        if (has_first && position > first) return FIRST_IS_MISSING;
        has_first = false;
        // After a reconnection, a reader starts again at the beginning of its current batch.
        if (!has_after || position > after) {
            after = position;
            has_after = true;
            add(message, id);
        }
        return position == end ? AT_END : is_full() ? FULL : WAITING;
    }

    void add(const Message& message, const MessageId& id) {
        Block& to = *block;
        const std::size_t size = library.length(&message);
        if (library.has_null_value(&message))
            to.payload.add_null();
        else
            to.payload.add(library.data(&message), size);
        auto& key = library.key(&message);
        key.empty() ? to.key.add_null() : to.key.add(key);
        auto& ordering_key = library.ordering_key(&message);
        ordering_key.empty() ? to.ordering_key.add_null() : to.ordering_key.add(ordering_key);
        if (std::get<2>(position) < 0)  // the message may be chunked
            to.id.add(id_text(library.print_id, id));
        else
            to.id.add(std::to_string(std::get<0>(position)) + ':' +
                      std::to_string(std::get<1>(position)) + ':' + number + ':' +
                      std::to_string(std::get<2>(position)));
        to.publish_time.add(std::int64_t(library.publish_time(&message)));
        to.event_time.add(std::int64_t(library.event_time(&message)));
        to.schema_version.add(library.schema_version(&message));
        add_properties(library.properties(&message));
        to.property_bytes += key.size() + ordering_key.size();
        to.payload_bytes += size;
        to.rows += 1;
    }

    void add_properties(const Properties& properties) {
        Block& to = *block;
        to.places.push_back(std::int32_t(to.names.offsets.size() - 1));
        bool readable = true;
        for (auto& [name, value] : properties)
            if (!is_utf8(name) || !is_utf8(value)) readable = false;
        to.readable.push_back(readable);
        if (!readable) {
            for (auto& each : to.wanted) each.add_null();
            return;
        }
        std::size_t next = 0;  // both are sorted
        for (auto& [name, value] : properties) {
            while (next < wanted.size() && wanted[next] < name) to.wanted[next++].add_null();
            if (next < wanted.size() && wanted[next] == name) {
                to.wanted[next++].add(value);
            } else {
                to.names.add(name);
                to.values.add(value);
            }
            to.property_bytes += name.size() + value.size();
        }
        while (next < wanted.size()) to.wanted[next++].add_null();
    }

    bool is_full() const {
        return block->rows >= most_rows || std::int64_t(block->payload_bytes) >= most_bytes ||
               block->property_bytes >= MOST_PROPERTY_BYTES;
    }
};

struct Reading {
    PyObject_HEAD
    Piece* inner;
};

bool read_position(PyObject* object, bool& given, Position& position) {
    given = object != Py_None;
    if (!given) return true;
    long long ledger, entry, batch;
    if (!PyTuple_Check(object)) {
        PyErr_SetString(PyExc_TypeError, "a position must be a tuple or None");
        return false;
    }
    if (!PyArg_ParseTuple(object, "LLL", &ledger, &entry, &batch)) return false;
    position = {ledger, entry, batch};
    return true;
}

// Reading(number, after, first, end, until, wanted, rows, bytes); the last two limit a block
PyObject* reading_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    long long number, until, rows, bytes;
    PyObject *after, *first, *end, *wanted;
    if (!PyArg_ParseTuple(arguments, "LOOOLO!LL", &number, &after, &first, &end, &until,
                          &PyTuple_Type, &wanted, &rows, &bytes))
        return nullptr;
    return guarded([=]() -> PyObject* {
        auto piece = std::make_unique<Piece>();
        piece->number = std::to_string(number);
        piece->until = until;
        piece->most_rows = rows;
        piece->most_bytes = bytes;
        bool has_end;
        if (!read_position(after, piece->has_after, piece->after) ||
            !read_position(first, piece->has_first, piece->first) ||
            !read_position(end, has_end, piece->end))
            return nullptr;
        std::vector<std::string> names(PyTuple_Size(wanted));
        for (std::size_t each = 0; each < names.size(); ++each)
            if (!read_text(PyTuple_GetItem(wanted, Py_ssize_t(each)), names[each])) return nullptr;
        piece->wanted = names;
        std::sort(piece->wanted.begin(), piece->wanted.end());
        for (auto& name : names)
            piece->order.push_back(
                std::find(piece->wanted.begin(), piece->wanted.end(), name) - piece->wanted.begin());
        piece->clear();
        auto* self = allocated<Reading>(type);
        if (self != nullptr) self->inner = piece.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

// read(reader, timeout_ms) -> (status, result). The result is not Ok if the status is
// `WAITING` because no message has come for that time.
PyObject* reading_read(PyObject* object, PyObject* arguments) {
    PyObject* source;
    int timeout;
    if (!PyArg_ParseTuple(arguments, "Oi", &source, &timeout)) return nullptr;
    auto* piece = reinterpret_cast<Reading*>(object)->inner;
    auto* reader = static_cast<Reader*>(pointer_of(source, reader_type, READER));
    if (reader == nullptr) return nullptr;
    Busy busy(piece->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* {
        Status status = WAITING;
        Result result = ResultOk;
        bool done = without_python([&] {
            const auto until = Clock::now() + std::chrono::milliseconds(timeout);
            Message message;
            // At the time-out, Python looks at signals, even if messages come slowly.
            while (status == WAITING && Clock::now() < until) {
                result = library.read_next(reader, message, timeout);
                if (result != ResultOk) return;
                status = piece->take(message);
            }
        });
        if (!done) return nullptr;
        return Py_BuildValue("(ii)", int(status), int(result));
    });
}

// add(message) -> status
PyObject* reading_add(PyObject* object, PyObject* source) {
    auto* piece = reinterpret_cast<Reading*>(object)->inner;
    auto* message = static_cast<Message*>(pointer_of(source, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    Busy busy(piece->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* { return PyLong_FromLong(piece->take(*message)); });
}

template <class Item>
PyObject* bytes_of(const std::vector<Item>& items) {
    return bytes_of(items.data(), items.size() * sizeof(Item));
}

// (nulls, validity, offsets, data)
PyObject* parts(const Texts& texts) {
    return Py_BuildValue("(nNNN)", Py_ssize_t(texts.nulls), bytes_of(texts.validity),
                         bytes_of(texts.offsets), bytes_of(texts.data.data(), texts.data.size()));
}

// take() -> (rows, payload, key, ordering key, id, publish times, event times, schema versions,
// wanted, names, values, places, readable): the buffers of what was read since the last call
PyObject* reading_take(PyObject* object, PyObject*) {
    auto* piece = reinterpret_cast<Reading*>(object)->inner;
    Busy busy(piece->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* {
        Block& block = *piece->block;
        block.places.push_back(std::int32_t(block.names.offsets.size() - 1));
        PyObject* wanted = PyTuple_New(Py_ssize_t(piece->order.size()));
        if (wanted == nullptr) return nullptr;
        for (std::size_t each = 0; each < piece->order.size(); ++each) {
            PyObject* item = parts(block.wanted[piece->order[each]]);
            if (item == nullptr || PyTuple_SetItem(wanted, Py_ssize_t(each), item) != 0) {
                Py_DECREF(wanted);
                return nullptr;
            }
        }
        PyObject* result = Py_BuildValue(
            "(nNNNNNNNNNNNN)", Py_ssize_t(block.rows), parts(block.payload), parts(block.key),
            parts(block.ordering_key), parts(block.id), bytes_of(block.publish_time.values),
            bytes_of(block.event_time.values), bytes_of(block.schema_version.values), wanted, parts(block.names), parts(block.values),
            bytes_of(block.places), bytes_of(block.readable));
        piece->clear();
        return result;
    });
}

// rows() -> how many rows `take` would return
PyObject* reading_rows(PyObject* object, PyObject*) {
    return PyLong_FromLongLong(reinterpret_cast<Reading*>(object)->inner->block->rows);
}

// position() -> that of the last message that came, or None
PyObject* reading_position(PyObject* object, PyObject*) {
    auto* piece = reinterpret_cast<Reading*>(object)->inner;
    if (!piece->has_position) Py_RETURN_NONE;
    auto [ledger, entry, batch] = piece->position;
    return Py_BuildValue("(LLL)", static_cast<long long>(ledger), static_cast<long long>(entry),
                         static_cast<long long>(batch));
}

// -- the module's functions ------------------------------------------------------------------------

// unconnected() -> the result of a reader that is not connected; for the test of `setup`
PyObject* unconnected(PyObject*, PyObject*) {
    return guarded([]() -> PyObject* {
        Reader reader;
        Message message;
        return PyLong_FromLong(library.read_next(&reader, message, 1));
    });
}

bool found_all(const char* path) {
    const Function functions[] = {
        {OF_MESSAGE "20getLongSchemaVersionEv", &library.schema_version},
        {OF_BUILDER "11setPropertyERK" STRING "S8_", &library.set_property},
        {OF_BUILDER "13setSequenceIdEl", &library.set_sequence},
        {"_ZN6pulsar6Reader8readNextERNS_7MessageEi", &library.read_next},
    };
    return find_common(path, library) && find_all(path, functions);
}

// setup(path, platform): finds the library that the module at *path* has loaded.
PyObject* setup(PyObject*, PyObject* arguments) {
    const char *path, *platform;
    if (!PyArg_ParseTuple(arguments, "ss", &path, &platform)) return nullptr;
    if (!found_all(path) || !set_platform(platform)) return nullptr;
    Py_RETURN_NONE;
}

PyType_Slot columns_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(columns_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Columns>)},
    {Py_tp_doc, const_cast<char*>("Columns(rows, columns): the buffers of Arrow's columns.")},
    {}};
PyType_Spec columns_spec = {"pulsar_retry.native._rows.Columns", sizeof(Columns), 0,
                            Py_TPFLAGS_DEFAULT, columns_slots};

PyMethodDef receipts_methods[] = {
    {"take", receipts_take, METH_VARARGS,
     "take(rows, timeout_ms): wait until so many rows have receipts, one has failed, or none has "
     "come for that time. Return rows, duplicates and failures since the last call."},
    {}};
PyType_Slot receipts_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(receipts_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Receipts>)},
    {Py_tp_methods, receipts_methods},
    {Py_tp_doc, const_cast<char*>("Counts the rows that have receipts.")},
    {}};
PyType_Spec receipts_spec = {"pulsar_retry.native._rows.Receipts", sizeof(Receipts), 0,
                             Py_TPFLAGS_DEFAULT, receipts_slots};

PyMethodDef letters_methods[] = {
    {"append", letters_append, METH_O, "Add a message of pulsar-client's builder."},
    {"extend", letters_extend, METH_VARARGS,
     "extend(columns, rows, plan, now_ms, sequence): build messages of rows."},
    {"send", letters_send, METH_VARARGS,
     "send(producer, receipts, topic, each): send all messages, and forget them."},
    {"first", letters_first, METH_NOARGS, "Return what the first message has, for a test."},
    {}};
PyType_Slot letters_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(letters_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Letters>)},
    {Py_tp_methods, letters_methods},
    {Py_sq_length, reinterpret_cast<void*>(letters_length)},
    {Py_tp_doc, const_cast<char*>("Messages that were built and wait to be sent together.")},
    {}};
PyType_Spec letters_spec = {"pulsar_retry.native._rows.Letters", sizeof(Letters), 0,
                            Py_TPFLAGS_DEFAULT, letters_slots};

PyMethodDef reading_methods[] = {
    {"read", reading_read, METH_VARARGS,
     "read(reader, timeout_ms): receive messages; return why it has ended."},
    {"add", reading_add, METH_O, "Take a message that was received; return a status."},
    {"take", reading_take, METH_NOARGS, "Return the buffers of what was read, and start anew."},
    {"rows", reading_rows, METH_NOARGS, "Return how many rows `take` would return."},
    {"position", reading_position, METH_NOARGS, "Return the position of the last message."},
    {}};
PyType_Slot reading_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(reading_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Reading>)},
    {Py_tp_methods, reading_methods},
    {Py_tp_doc,
     const_cast<char*>("Reading(number, after, first, end, until, wanted, rows, bytes): a part of a "
                       "partition, in blocks of at most so many rows and bytes of payload.")},
    {}};
PyType_Spec reading_spec = {"pulsar_retry.native._rows.Reading", sizeof(Reading), 0,
                            Py_TPFLAGS_DEFAULT, reading_slots};

PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "Find pulsar-client's library in the process."},
    {"unconnected", unconnected, METH_NOARGS,
     "Return the result of reading with a reader that is not connected, for a test."},
    {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rows", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit__rows() {
    prepare();
    message_type = type_capsule(typeid(Message));
    producer_type = type_capsule(typeid(Producer));
    reader_type = type_capsule(typeid(Reader));
    columns_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&columns_spec));
    receipts_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&receipts_spec));
    letters_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&letters_spec));
    reading_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&reading_spec));
    return created(definition, {{"Columns", columns_type},
                                {"Receipts", receipts_type},
                                {"Letters", letters_type},
                                {"Reading", reading_type}});
}
