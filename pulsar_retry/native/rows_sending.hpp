// Rows that become messages: columns, receipts and letters.

#pragma once

#include <condition_variable>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "rows_state.hpp"

namespace {

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
enum { PAYLOAD, KEY, ORDERING_KEY, EVENT_TIME, DUE, FIRST_PROPERTY };

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
                (each == EVENT_TIME || each == DUE) != (column->offsets.view.obj == nullptr)) {
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
    std::int64_t rows = 0, wanted = 0;
    std::vector<Failure> failures;
    Clock::time_point last = Clock::now();

    void came(const std::shared_ptr<const std::string>& topic, std::int64_t count, Result result,
              const MessageId& id) noexcept {
        try {
            // Only the last row of a batch asks for a receipt; its place proves the whole batch.
            bool whole = result == ResultOk && std::max(library.batch(&id), 0) == count - 1;
            std::lock_guard<std::mutex> lock(mutex);
            last = Clock::now();
            if (whole) {
                rows += count;
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

// take(rows, timeout_ms) -> (rows, [(topic, rows, result), ...]) since the last call
PyObject* receipts_take(PyObject* object, PyObject* arguments) {
    long long wanted, timeout;
    if (!PyArg_ParseTuple(arguments, "LL", &wanted, &timeout)) return nullptr;
    return guarded([=]() -> PyObject* {
        auto counts = reinterpret_cast<Receipts*>(object)->inner->counts;
        const auto began = Clock::now();
        const auto patience = std::chrono::milliseconds(std::max(0LL, timeout));
        std::int64_t rows = 0;
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
        return Py_BuildValue("(LN)", static_cast<long long>(rows), list);
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
        if (auto* due = given(DUE))
            if (due->number(row) > 0) library.set_deliver_at(builder, due->number(row));
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

// extend(columns, rows, plan): build messages of *rows* (64-bit numbers).
PyObject* letters_extend(PyObject* object, PyObject* arguments) {
    PyObject *source, *rows, *plan;
    if (!PyArg_ParseTuple(arguments, "O!OO!", columns_type, &source, &rows, &PyTuple_Type, &plan))
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
            Builder builder{frame, properties, {}};
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

}  // namespace
