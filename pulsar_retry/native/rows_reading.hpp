// Messages that become rows.

#pragma once

#include <chrono>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "rows_state.hpp"

namespace {

// Tells whether *size* bytes are UTF-8 as Python reads it.
bool is_utf8(const char* data, std::size_t size) {
    auto* byte = reinterpret_cast<const unsigned char*>(data);
    auto* end = byte + size;
    while (byte < end) {
        if (*byte < 0x80) {
            std::uint64_t eight;  // most texts are ASCII
            while (end - byte >= 8 && (std::memcpy(&eight, byte, 8), eight & 0x8080808080808080) == 0)
                byte += 8;
            while (byte < end && *byte < 0x80) ++byte;
            continue;
        }
        int more = *byte >= 0xF0 ? 3 : *byte >= 0xE0 ? 2 : 1;
        if (*byte < 0xC2 || *byte > 0xF4 || end - byte <= more) return false;
        unsigned char low = *byte == 0xE0 ? 0xA0 : *byte == 0xF0 ? 0x90 : 0x80;
        unsigned char high = *byte == 0xED ? 0x9F : *byte == 0xF4 ? 0x8F : 0xBF;
        if (byte[1] < low || byte[1] > high) return false;
        for (int each = 2; each <= more; ++each)
            if (byte[each] < 0x80 || byte[each] > 0xBF) return false;
        byte += more + 1;
    }
    return true;
}

bool is_utf8(const std::string& text) { return is_utf8(text.data(), text.size()); }

// Returns the text of an id as letters have it: ledger:entry:partition, and :batch in a batch.
std::string id_text(std::ostream& (*print)(std::ostream&, const MessageId&), const MessageId& id) {
    thread_local std::ostringstream stream;  // to make one takes longer than to print an id
    stream.str(std::string());
    print(stream, id);
    std::string text = stream.str();  // (ledger,entry,partition,batch), for chunks two with a ;
    std::string letters_text;
    std::size_t begin = 0;
    while (begin < text.size()) {
        std::size_t end = text.find(';', begin);
        if (end == std::string::npos) end = text.size();
        std::string part = text.substr(begin + 1, end - begin - 2);
        std::replace(part.begin(), part.end(), ',', ':');
        if (part.size() > 3 && part.compare(part.size() - 3, 3, ":-1") == 0)
            part.resize(part.size() - 3);
        if (!letters_text.empty()) letters_text += ';';
        letters_text += part;
        begin = end + 1;
    }
    return letters_text;
}

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

// The most bytes of properties in one block: 32-bit offsets have to suffice.
constexpr std::size_t MOST_PROPERTY_BYTES = 256 << 20;

// A block of messages, and one that is held until Python has decided what it is.
struct Filling {
    std::string number;  // of the partition
    bool has_after = false, is_held = false, is_busy = false;
    Position after, end, position;  // the last of them is that of the latest message
    std::int64_t since = -1, until = -1;
    std::int64_t most_rows = 0, most_bytes = 0;  // of a block
    std::vector<std::string> wanted;             // sorted
    std::vector<std::size_t> order;              // of the wanted properties, as they were given
    std::unique_ptr<Block> block;
    Message held;
    std::string id;  // of the latest message

    void clear() {
        block = std::make_unique<Block>();
        block->wanted.resize(wanted.size());
    }

    // Adds a message that plainly follows the last one. Any other is held: whether it is a row, and
    // whether reading goes on, is decided in Python, which would decide the same for the plain ones.
    void take(const Message& message) {
        identify(message);
        const auto published = std::int64_t(library.publish_time(&message));
        const bool in_time = published >= since && (until < 0 || published <= until);
        if (in_time && position < end && follows()) {
            add(message);
            after = position;
        } else {
            held = message;
            is_held = true;
        }
    }

    void identify(const Message& message) {
        const MessageId& raw = library.id(&message);
        position = {library.ledger(&raw), library.entry(&raw), library.batch(&raw)};
        auto [ledger, entry, batch] = position;
        id = batch < 0  // then the message may be chunked
                 ? id_text(library.print_id, raw)
                 : std::to_string(ledger) + ':' + std::to_string(entry) + ':' + number + ':' +
                       std::to_string(batch);
    }

    // Whether no other entry can lie between the last message and this one, which has no chunks.
    bool follows() const {
        auto [ledger, entry, batch] = position;
        auto [last_ledger, last_entry, last_batch] = after;
        return has_after && ledger == last_ledger &&
               (entry == last_entry ? batch > last_batch : entry == last_entry + 1) &&
               (batch >= 0 || id.find(';') == std::string::npos);
    }

    void add(const Message& message) {
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
        to.id.add(id);
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
    Filling* inner;
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

PyObject* tuple_of(const Position& position) {
    auto [ledger, entry, batch] = position;
    return Py_BuildValue("(LLL)", static_cast<long long>(ledger), static_cast<long long>(entry),
                         static_cast<long long>(batch));
}

// Reading(number, end, since, until, wanted, rows, bytes); the last two limit a block
PyObject* reading_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    long long number, since, until, rows, bytes;
    PyObject *end, *wanted;
    if (!PyArg_ParseTuple(arguments, "LOLLO!LL", &number, &end, &since, &until, &PyTuple_Type,
                          &wanted, &rows, &bytes))
        return nullptr;
    return guarded([=]() -> PyObject* {
        auto filling = std::make_unique<Filling>();
        filling->number = std::to_string(number);
        filling->since = since;
        filling->until = until;
        filling->most_rows = rows;
        filling->most_bytes = bytes;
        bool has_end;
        if (!read_position(end, has_end, filling->end)) return nullptr;
        std::vector<std::string> names(PyTuple_Size(wanted));
        for (std::size_t each = 0; each < names.size(); ++each)
            if (!read_text(PyTuple_GetItem(wanted, Py_ssize_t(each)), names[each])) return nullptr;
        filling->wanted = names;
        std::sort(filling->wanted.begin(), filling->wanted.end());
        for (auto& name : names)
            filling->order.push_back(
                std::find(filling->wanted.begin(), filling->wanted.end(), name) -
                filling->wanted.begin());
        filling->clear();
        auto* self = allocated<Reading>(type);
        if (self != nullptr) self->inner = filling.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

// read(reader, timeout_ms, after) -> (result, after): receives messages until one is held, the block
// is full, or none has come for that time. *after* is the last message before, or None.
PyObject* reading_read(PyObject* object, PyObject* arguments) {
    PyObject *source, *last;
    int timeout;
    if (!PyArg_ParseTuple(arguments, "OiO", &source, &timeout, &last)) return nullptr;
    auto* filling = reinterpret_cast<Reading*>(object)->inner;
    auto* reader = static_cast<Reader*>(pointer_of(source, reader_type, READER));
    if (reader == nullptr) return nullptr;
    Busy busy(filling->is_busy);
    if (!busy.mine || !read_position(last, filling->has_after, filling->after)) return nullptr;
    return guarded([=]() -> PyObject* {
        Result result = ResultOk;
        bool done = without_python([&] {
            const auto until = Clock::now() + std::chrono::milliseconds(timeout);
            Message message;
            // At the time-out, Python looks at signals, even if messages come slowly.
            while (!filling->is_held && !filling->is_full() && Clock::now() < until) {
                result = library.read_next(reader, message, timeout);
                if (result != ResultOk) return;
                filling->take(message);
            }
        });
        if (!done) return nullptr;
        PyObject* after = filling->has_after ? tuple_of(filling->after) : Py_BuildValue("");
        return Py_BuildValue("(iN)", int(result), after);
    });
}

// hold(message): hold a message that Python has received
PyObject* reading_hold(PyObject* object, PyObject* source) {
    auto* filling = reinterpret_cast<Reading*>(object)->inner;
    auto* message = static_cast<Message*>(pointer_of(source, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    Busy busy(filling->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* {
        filling->identify(*message);
        filling->held = *message;
        filling->is_held = true;
        Py_RETURN_NONE;
    });
}

// held() -> (position, publish time, id) of the message that is held, or None
PyObject* reading_held(PyObject* object, PyObject*) {
    auto* filling = reinterpret_cast<Reading*>(object)->inner;
    Busy busy(filling->is_busy);
    if (!busy.mine) return nullptr;
    if (!filling->is_held) Py_RETURN_NONE;
    auto published = static_cast<long long>(library.publish_time(&filling->held));
    return Py_BuildValue("(NLs)", tuple_of(filling->position), published, filling->id.c_str());
}

// settle(is_row): add the message that is held to the block, or drop it
PyObject* reading_settle(PyObject* object, PyObject* is_row) {
    auto* filling = reinterpret_cast<Reading*>(object)->inner;
    Busy busy(filling->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* {
        if (filling->is_held && is_row == Py_True) filling->add(filling->held);
        filling->is_held = false;
        filling->held = Message();
        Py_RETURN_NONE;
    });
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
    auto* filling = reinterpret_cast<Reading*>(object)->inner;
    Busy busy(filling->is_busy);
    if (!busy.mine) return nullptr;
    return guarded([=]() -> PyObject* {
        Block& block = *filling->block;
        block.places.push_back(std::int32_t(block.names.offsets.size() - 1));
        PyObject* wanted = PyTuple_New(Py_ssize_t(filling->order.size()));
        if (wanted == nullptr) return nullptr;
        for (std::size_t each = 0; each < filling->order.size(); ++each) {
            PyObject* item = parts(block.wanted[filling->order[each]]);
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
        filling->clear();
        return result;
    });
}

// rows() -> (how many rows `take` would return, whether the block is full)
PyObject* reading_rows(PyObject* object, PyObject*) {
    auto* filling = reinterpret_cast<Reading*>(object)->inner;
    return Py_BuildValue("(LN)", static_cast<long long>(filling->block->rows),
                         PyBool_FromLong(filling->is_full()));
}

}  // namespace
