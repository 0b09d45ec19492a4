// Rows that become messages: their columns, and their receipts.

#pragma once

#include <condition_variable>
#include <limits>
#include <mutex>
#include <set>
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

// A property of the rows: a constant, or a column. A row with a null there has no such property.
struct Property {
    std::string name, value;
    const Column* column = nullptr;
};

struct Frame {
    std::int64_t rows = 0;
    std::vector<std::unique_ptr<Column>> columns;  // null: no such column
    std::vector<Property> properties;
};

struct Columns {
    PyObject_HEAD
    Frame* inner;
};

// Reads ((name, text or the number of a column), ...); false with an exception set.
bool read_plan(PyObject* plan, Frame& frame) {
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
        frame.properties.push_back(std::move(property));
    }
    return true;
}

// Columns(rows, ((start, validity, offsets, data) or None, ...), plan)
PyObject* columns_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    long long rows;
    PyObject *given, *plan;
    if (!PyArg_ParseTuple(arguments, "LO!O!", &rows, &PyTuple_Type, &given, &PyTuple_Type, &plan))
        return nullptr;
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
        if (!read_plan(plan, *frame)) return nullptr;
        auto* self = allocated<Columns>(type);
        if (self != nullptr) self->inner = frame.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

// -- Receipts --------------------------------------------------------------------------------------

// Counts the receipts of a task. Callbacks have only its address, which costs no memory for each
// row. It lives until the last of them was called, also if the task gives up before.
struct Counts {
    std::mutex mutex;
    std::condition_variable changed;
    std::set<std::string> topics;
    std::int64_t rows = 0, wanted = 0, awaited = 0;
    bool is_abandoned = false;
    const std::string* refused = nullptr;  // the topic of the first row that was refused
    Result result = ResultOk;
    Clock::time_point last = Clock::now();

    const std::string* sent(const char* topic, std::int64_t more) {
        std::lock_guard<std::mutex> lock(mutex);
        awaited += more;
        return &*topics.emplace(topic).first;
    }
    void came(const std::string* topic, Result of_row) noexcept {
        bool is_last;
        {
            std::lock_guard<std::mutex> lock(mutex);
            last = Clock::now();
            if (of_row == ResultOk) {
                rows += 1;
            } else if (result == ResultOk) {
                refused = topic;
                result = of_row;
            }
            is_last = --awaited == 0 && is_abandoned;
            if (rows >= wanted || result != ResultOk) changed.notify_all();
        }
        if (is_last) delete this;
    }
    void abandon() {
        bool is_last;
        {
            std::lock_guard<std::mutex> lock(mutex);
            is_abandoned = true;
            is_last = awaited == 0;
        }
        if (is_last) delete this;
    }
};

struct ReceiptsBox {
    Counts* counts = new Counts;
    ReceiptsBox() = default;
    ReceiptsBox(const ReceiptsBox&) = delete;
    ReceiptsBox& operator=(const ReceiptsBox&) = delete;
    ~ReceiptsBox() { counts->abandon(); }
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

// take(rows, timeout_ms) -> (rows since the last call, the topic of a refused row, its result)
PyObject* receipts_take(PyObject* object, PyObject* arguments) {
    long long wanted, timeout;
    if (!PyArg_ParseTuple(arguments, "LL", &wanted, &timeout)) return nullptr;
    return guarded([=]() -> PyObject* {
        auto* counts = reinterpret_cast<Receipts*>(object)->inner->counts;
        const auto began = Clock::now();
        const auto patience = std::chrono::milliseconds(std::max(0LL, timeout));
        std::int64_t rows = 0;
        const std::string* refused = nullptr;
        Result result = ResultOk;
        for (bool waits = true; waits;) {
            bool done = without_python([&] {
                std::unique_lock<std::mutex> lock(counts->mutex);
                counts->wanted = wanted;
                auto until = std::min(std::max(began, counts->last) + patience,
                                      Clock::now() + std::chrono::milliseconds(100));
                counts->changed.wait_until(lock, until, [&] {
                    return counts->rows >= wanted || counts->result != ResultOk;
                });
                waits = counts->rows < wanted && counts->result == ResultOk &&
                        Clock::now() < std::max(began, counts->last) + patience;
                if (waits) return;
                rows = std::exchange(counts->rows, 0);
                refused = std::exchange(counts->refused, nullptr);
                result = std::exchange(counts->result, ResultOk);
                counts->wanted = std::numeric_limits<std::int64_t>::max();
            });
            if (!done || PyErr_CheckSignals() != 0) return nullptr;
        }
        return Py_BuildValue("(Lsi)", static_cast<long long>(rows),
                             refused == nullptr ? "" : refused->c_str(), int(result));
    });
}

// -- Sending ---------------------------------------------------------------------------------------

// Builds messages; its strings are used again for each row.
struct Builder {
    const Frame& frame;
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
        for (auto& each : frame.properties) {
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

// send(producer, receipts, topic, rows): build messages of *rows* (64-bit numbers) and send
// them; each has a receipt.
PyObject* columns_send(PyObject* object, PyObject* arguments) {
    PyObject *target, *counter, *rows;
    const char* topic;
    if (!PyArg_ParseTuple(arguments, "OO!sO", &target, receipts_type, &counter, &topic, &rows))
        return nullptr;
    auto* producer = static_cast<Producer*>(pointer_of(target, producer_type, PRODUCER));
    if (producer == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        const Frame& frame = *reinterpret_cast<Columns*>(object)->inner;
        Buffer numbers;
        if (!numbers.open(rows)) return nullptr;
        auto* row = static_cast<const std::int64_t*>(numbers.view.buf);
        const std::int64_t count = numbers.view.len / 8;
        for (std::int64_t each = 0; each < count; ++each)
            if (row[each] < 0 || row[each] >= frame.rows) {
                PyErr_SetString(PyExc_IndexError, "there is no such row");
                return nullptr;
            }
        auto* counts = reinterpret_cast<Receipts*>(counter)->inner->counts;
        auto* name = counts->sent(topic, count);
        bool done = without_python([&] {
            const SendCallback receipt = [counts, name](Result result, const MessageId&) {
                counts->came(name, result);
            };
            Builder builder{frame, {}};
            for (std::int64_t each = 0; each < count; ++each)
                library.send(producer, builder.build(row[each]), receipt);
        });
        if (!done) return nullptr;
        Py_RETURN_NONE;
    });
}

// described(row) -> what the message of a row has, for a test
PyObject* columns_described(PyObject* object, PyObject* number) {
    const long long row = PyLong_AsLongLong(number);
    if (row == -1 && PyErr_Occurred()) return nullptr;
    return guarded([=]() -> PyObject* {
        const Frame& frame = *reinterpret_cast<Columns*>(object)->inner;
        if (row < 0 || row >= frame.rows) throw std::out_of_range("there is no such row");
        return described(library, Builder{frame, {}}.build(row));
    });
}

}  // namespace
