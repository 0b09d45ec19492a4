// Fingerprints of letters, which tell whether two letters are equal.

#pragma once

#include <random>
#include <set>

#include "handoff_letters.hpp"

namespace {

// Which properties do not matter. The rule is written in Python, in
// `pulsar_retry.consumer.duplicates`; this is a copy for the usual letters, and a test compares them.
struct PrintRule {
    std::set<std::string> varying;  // names of properties
    std::string prefix;             // of further names

    // Puts what is compared of a letter into *text*, so that equal letters have equal texts. False:
    // the letter is not usual, and Python decides.
    bool write(const Message& letter, std::string& text) const {
        auto add = [&text](const char* data, std::size_t size) {
            text.append(reinterpret_cast<const char*>(&size), sizeof size);
            text.append(data, size);
        };
        for (auto& [name, value] : library.properties(&letter)) {
            if (!is_utf8(name) || !is_utf8(value)) return false;
            if (name.compare(0, prefix.size(), prefix) == 0 || varying.count(name) != 0) continue;
            add(name.data(), name.size());
            add(value.data(), value.size());
        }
        const std::string &key = library.key(&letter), &order = library.ordering_key(&letter);
        if (!is_utf8(key) || !is_utf8(order)) return false;
        const std::uint64_t numbers[] = {library.event_time(&letter), library.has_null_value(&letter)};
        // Behind the properties: no property's name is so long that these could be one.
        text.append(sizeof(std::size_t), '\xff');
        add(key.data(), key.size());
        add(order.data(), order.size());
        text.append(reinterpret_cast<const char*>(numbers), sizeof numbers);
        text.append(static_cast<const char*>(library.data(&letter)), library.length(&letter));
        return true;
    }
};

struct Prints {
    PyObject_HEAD
    PrintRule* inner;
};

PyTypeObject* prints_type;

// Prints(varying, prefix)
PyObject* prints_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    PyObject* names;
    const char* prefix;
    if (!PyArg_ParseTuple(arguments, "O!s", &PyTuple_Type, &names, &prefix)) return nullptr;
    return guarded([=]() -> PyObject* {
        auto rule = std::make_unique<PrintRule>();
        rule->prefix = prefix;
        if (!read_names(names, rule->varying)) return nullptr;
        auto* self = allocated<Prints>(type);
        if (self != nullptr) self->inner = rule.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

// SipHash-1-3 with a secret key, as Python hashes texts: nobody can make letters with equal hashes.
// Python's own needs an object for the text, whose allocation takes longer than the hash.
std::uint64_t keyed_hash(const std::string& text) {
    static const auto key = [] {
        std::random_device random;
        auto number = [&] { return std::uint64_t(random()) << 32 | random(); };
        return std::pair<std::uint64_t, std::uint64_t>(number(), number());
    }();
    std::uint64_t a = key.first ^ 0x736f6d6570736575, b = key.second ^ 0x646f72616e646f6d;
    std::uint64_t c = key.first ^ 0x6c7967656e657261, d = key.second ^ 0x7465646279746573;
    auto turned = [](std::uint64_t value, int by) { return value << by | value >> (64 - by); };
    auto mix = [&] {
        a += b, b = turned(b, 13) ^ a, a = turned(a, 32);
        c += d, d = turned(d, 16) ^ c;
        a += d, d = turned(d, 21) ^ a;
        c += b, b = turned(b, 17) ^ c, c = turned(c, 32);
    };
    auto add = [&](std::uint64_t word) { d ^= word, mix(), a ^= word; };
    const char *at = text.data(), *end = at + text.size();
    std::uint64_t word;
    for (; end - at >= 8; at += 8) {
        std::memcpy(&word, at, 8);
        add(word);
    }
    word = std::uint64_t(text.size()) << 56;
    std::memcpy(&word, at, std::size_t(end - at));
    add(word);
    c ^= 0xff;
    mix(), mix(), mix();
    return a ^ b ^ c ^ d;
}

// Returns the hash of what is compared of a letter, or None if Python decides.
PyObject* hash_of(const PrintRule& rule, const Message& letter) {
    thread_local std::string text;
    text.clear();
    if (!rule.write(letter, text)) Py_RETURN_NONE;
    std::uint64_t hash = keyed_hash(text);
    if (text.capacity() > RetryRule::MOST_BYTES) text = std::string();
    return PyLong_FromUnsignedLongLong(hash);
}

// of(letter) -> ((identity, hash), when it was made); None if Python decides; False if the letter
// has no identity
PyObject* prints_of(PyObject* object, PyObject* source) {
    const PrintRule& rule = *reinterpret_cast<Prints*>(object)->inner;
    auto* letter = static_cast<Message*>(pointer_of(source, message_type, MESSAGE));
    if (letter == nullptr) return nullptr;
    return guarded([&]() -> PyObject* {
        const Properties& properties = library.properties(letter);
        auto identity = properties.find("ORIGIN_MESSAGE_ID");
        if (identity == properties.end() || identity->second.empty() ||
            library.producer(letter).rfind(IDENTITY, 0) != 0 ||
            library.topic(letter).rfind("non-persistent:", 0) == 0)
            Py_RETURN_FALSE;
        auto counted = properties.find("RECONSUMETIMES");
        std::int64_t count, stamp = 0;
        if (counted == properties.end() || !read_number(counted->second, 9, count) || count == 0)
            Py_RETURN_NONE;
        auto stamped = properties.find("FAILURE_STAMP");
        if (stamped != properties.end() && !read_number(stamped->second, 18, stamp)) Py_RETURN_NONE;
        double made = std::max(double(library.publish_time(letter)) / 1000, double(stamp) / 1e6);
        PyObject* hash = hash_of(rule, *letter);
        if (hash == nullptr || hash == Py_None) return hash;
        return Py_BuildValue("((s#N)d)", identity->second.data(),
                             Py_ssize_t(identity->second.size()), hash, made);
    });
}

// content(message) -> the hash, or None; for a test
PyObject* prints_content(PyObject* object, PyObject* source) {
    auto* letter = static_cast<Message*>(pointer_of(source, message_type, MESSAGE));
    if (letter == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        return hash_of(*reinterpret_cast<Prints*>(object)->inner, *letter);
    });
}

}  // namespace
