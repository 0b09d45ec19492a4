// The letters that C++ makes, and their properties. See `pulsar_retry.letters` for the rules.

#pragma once

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <set>
#include <vector>

#include "handoff_state.hpp"

namespace {

// Fills *properties* from a dict of str; false with an exception set if it is something else.
bool read_properties(PyObject* dict, Properties& properties) {
    if (!PyDict_Check(dict)) {
        PyErr_SetString(PyExc_TypeError, "the properties must be a dict");
        return false;
    }
    PyObject *name, *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &name, &value)) {
        Py_ssize_t name_size, value_size;
        const char* name_text = PyUnicode_AsUTF8AndSize(name, &name_size);
        if (name_text == nullptr) return false;
        const char* value_text = PyUnicode_AsUTF8AndSize(value, &value_size);
        if (value_text == nullptr) return false;
        properties[std::string(name_text, name_size)].assign(value_text, value_size);
    }
    return true;
}

// Fills *names* from a tuple of str; false with an exception set if it is something else.
bool read_names(PyObject* tuple, std::set<std::string>& names) {
    for (Py_ssize_t each = 0; each < PyTuple_Size(tuple); each++) {
        Py_ssize_t size;
        const char* name = PyUnicode_AsUTF8AndSize(PyTuple_GetItem(tuple, each), &size);
        if (name == nullptr) return false;
        names.emplace(name, size);
    }
    return true;
}

// Returns text, in which bytes that are not UTF-8 are escaped.
PyObject* text_of(const std::string& bytes) {
    return PyUnicode_DecodeUTF8(bytes.data(), Py_ssize_t(bytes.size()), "backslashreplace");
}

// Returns a dict of *properties*; null with an exception set if that fails.
PyObject* dict_of(const Properties& properties) {
    PyObject* result = PyDict_New();
    if (result == nullptr) return nullptr;
    for (auto& [name, value] : properties) {
        PyObject* key = text_of(name);
        PyObject* text = text_of(value);
        int failed = key == nullptr || text == nullptr || PyDict_SetItem(result, key, text);
        Py_XDECREF(key);
        Py_XDECREF(text);
        if (failed) {
            Py_DECREF(result);
            return nullptr;
        }
    }
    return result;
}

// Returns a letter with the payload, key, ordering key and event time of *original*.
Message build(const Message& original, const Properties& properties, std::uint64_t deliver_at) {
    NewBuilder made(library);
    MessageBuilder* builder = made.get();
    if (library.has_null_value(&original))
        library.set_null_value(builder);
    else
        library.set_content(builder, library.data(&original), library.length(&original));
    library.set_properties(builder, properties);
    const std::string& key = library.key(&original);
    if (!key.empty()) library.set_key(builder, key);
    const std::string& ordering_key = library.ordering_key(&original);
    if (!ordering_key.empty()) library.set_ordering_key(builder, ordering_key);
    if (std::uint64_t moment = library.event_time(&original))
        library.set_event_time(builder, moment);
    if (deliver_at != 0) library.set_deliver_at(builder, deliver_at);
    return library.build(builder);
}

// The names of producers whose letters have an identity begin with this; see
// `pulsar_retry.letters.identity`.
constexpr const char* IDENTITY = "pulsar-retry-";

// Reads a number of 1 to *most* digits; false if it is something else.
bool read_number(const std::string& text, std::size_t most, std::int64_t& number) {
    if (text.empty() || text.size() > most) return false;
    number = 0;
    for (char digit : text) {
        if (digit < '0' || digit > '9') return false;
        number = number * 10 + (digit - '0');
    }
    return true;
}

// Writes seconds since 1970 as ISO 8601 in UTC, cut to milliseconds; false if Python has to do it.
bool write_time(double seconds, std::string& text) {
    if (!(seconds >= 0 && seconds < 4e9)) return false;  // later times have no exact microseconds
    std::int64_t milliseconds = std::llrint(seconds * 1e6) / 1000;
    std::time_t whole = milliseconds / 1000;
    std::tm parts;
    if (gmtime_r(&whole, &parts) == nullptr) return false;
    char buffer[32];
    std::size_t size = std::strftime(buffer, sizeof buffer, "%Y-%m-%dT%H:%M:%S", &parts);
    std::snprintf(buffer + size, sizeof buffer - size, ".%03dZ", int(milliseconds % 1000));
    text = buffer;
    return true;
}

// What a letter of this package says of earlier failures, which the next letter keeps.
struct Earlier {
    std::string history;    // entries, as JSON, each followed by a comma
    std::string published;  // when the message was published first

    // Reads both from a letter; false if their form is not that of `Attempt::write`.
    bool read(const std::string& array, const std::string& time) {
        std::size_t size = array.size();
        if (size < 4 || array.compare(0, 2, "[[") != 0 || array.compare(size - 2, 2, "]]") != 0)
            return false;
        history = array.substr(1, size - 2) + ",";
        published = time;
        return time.size() == 24 && time[10] == 'T' && time[19] == '.' && time[23] == 'Z';
    }
};

// What differs between failures of one kind. `pulsar_retry.wire.envelope` has the rule; this is a
// copy, and a test compares the two.
struct Attempt {
    long long number = 0;
    double when = 0, published = 0;  // of the failure, and of the message; in seconds since 1970
    std::string kind;                // the end of the entry of the history

    static constexpr std::size_t MOST_HISTORY = 2048;

    bool write(Properties& properties, const Earlier& earlier = {}) const {
        std::string moment, count = std::to_string(number);
        std::string& first = properties["FAILURE_PUBLISH_TIME"] = earlier.published;
        if (!write_time(when, moment) || (first.empty() && !write_time(published, first)))
            return false;
        std::string& history = properties["FAILURE_HISTORY"];
        history = "[" + earlier.history + "[" + count + ",\"" + moment + "\"," + kind + "]]";
        if (history.size() > MOST_HISTORY) return false;
        properties["FAILURE_ATTEMPT"] = count;
        properties["FAILURE_TIME"] = moment;
        return true;
    }
};

// Reads None as null, or (number, when, published, kind) into *room*; false with an exception set.
bool read_attempt(PyObject* source, Attempt& room, const Attempt*& attempt) {
    attempt = nullptr;
    if (source == Py_None) return true;
    const char* kind;
    if (!PyArg_ParseTuple(source, "Ldds", &room.number, &room.when, &room.published, &kind))
        return false;
    room.kind = kind;
    attempt = &room;
    return true;
}

// How a message has failed, as Python says it: changes of its properties, and the attempt or null.
struct Failure {
    Properties changes;
    Attempt room;
    const Attempt* attempt = nullptr;

    // False with an exception set if the objects are something else.
    bool read(PyObject* dict, PyObject* tuple) {
        return read_properties(dict, changes) && read_attempt(tuple, room, attempt);
    }
};

std::string id_text(const Message& message) {
    return id_text(library.print_id, library.id(&message));
}

// What a letter is made of: the message's facts, and its properties, which become the letter's.
struct Draft {
    Properties properties;
    std::string topic, id, producer;

    explicit Draft(const Message& message)
        : properties(library.properties(&message)),
          topic(library.topic(&message)),
          id(id_text(message)),
          producer(library.producer(&message)) {}
    Draft(const char* topic, const char* id, const char* producer)
        : topic(topic), id(id), producer(producer) {}
};

// What the letters of one subscription have in common. The rule itself is written in Python, in
// `pulsar_retry.letters.letter.reconsumed`; this is a copy for the usual cases, and a test compares
// the two. For every other case `apply` says no, and Python does it.
struct RetryRule {
    std::string retry_topic;
    std::string subscription;
    std::int64_t most = 0;            // retries, before a message is dead
    std::vector<double> delays;       // of the levels, in seconds
    bool writes_level = false;        // as TDMQ's clients do
    std::map<std::string, std::string> real_topics;  // of the topics that messages came from
    std::set<std::string> failure_names;  // of properties that letters change, besides FAILURE_…
    std::size_t room = 0;                 // for what a dead letter says of its failure, in bytes

    // Tells whether what *properties* say of letters is certainly the subscription's own; see
    // `pulsar_retry.wire.owner`.
    bool is_own(const Properties& properties, const std::string& topic) const {
        static const std::string partition = "-partition-";
        static const std::set<std::string> said = {
            "RECONSUMETIMES",    "DELAY_TIME",        "REAL_TOPIC",
            "REAL_SUBSCRIPTION", "RETRY_TOPIC",       "ORIGIN_MESSAGE_ID",
            "FAILURE_STAMP",     "FAILURE_CRASHES",   "ORIGIN_MESSAGE_IDY_TIME"};
        if (topic == retry_topic || topic.rfind(retry_topic + partition, 0) == 0) {
            auto named = properties.find("REAL_SUBSCRIPTION");
            return named == properties.end() || named->second == subscription;
        }
        return std::none_of(properties.begin(), properties.end(),
                            [](auto& each) { return said.count(each.first) != 0; });
    }

    // Reads how often a message was reconsumed. False: that is odd, so Python makes its dead letter.
    static bool read_count(const Properties& properties, std::int64_t& count) {
        count = 0;
        auto counted = properties.find("RECONSUMETIMES");
        return counted == properties.end() || read_number(counted->second, 9, count);
    }

    // Removes what the last failure was from the properties of a letter of this package, and keeps
    // what it says of all of them. False if they say something else that has to be removed.
    bool read_failure(Draft& draft, Earlier& earlier) const {
        static const std::set<std::string> last = {"FAILURE_ATTEMPT",     "FAILURE_ERROR",
                                                   "FAILURE_FINGERPRINT", "FAILURE_MESSAGE",
                                                   "FAILURE_STAGE",       "FAILURE_TIME"};
        Properties& properties = draft.properties;
        auto taken = [&properties](const char* name) {
            auto node = properties.extract(name);
            return node.empty() ? std::string() : std::move(node.mapped());
        };
        std::string history = taken("FAILURE_HISTORY"), published = taken("FAILURE_PUBLISH_TIME");
        bool has_failed = !history.empty() || !published.empty();
        for (auto each = properties.begin(); each != properties.end();) {
            if (last.count(each->first) != 0) {
                each = properties.erase(each);
                has_failed = true;
            } else if (each->first != "FAILURE_STAMP" && (each->first.rfind("FAILURE_", 0) == 0 ||
                                                          failure_names.count(each->first) != 0)) {
                return false;
            } else {
                ++each;
            }
        }
        return !has_failed ||
               (draft.producer.rfind(IDENTITY, 0) == 0 && earlier.read(history, published));
    }

    // Adds the origin's properties that are absent; false if the topic is not known.
    bool add_origin(Draft& draft) const {
        Properties& properties = draft.properties;
        if (properties.find("REAL_TOPIC") == properties.end()) {
            auto known = real_topics.find(draft.topic);
            if (known == real_topics.end()) return false;
            properties["REAL_TOPIC"] = known->second;
        }
        auto text_of = [&properties](const char* name) {
            auto found = properties.find(name);
            return found == properties.end() ? std::string() : found->second;
        };
        std::string origin = text_of("ORIGIN_MESSAGE_ID");
        if (origin.empty()) origin = text_of("ORIGIN_MESSAGE_IDY_TIME");
        if (origin.empty()) origin = draft.id;
        properties.emplace("ORIGIN_MESSAGE_ID", origin);
        properties.emplace("ORIGIN_MESSAGE_IDY_TIME", origin);
        properties.emplace("REAL_SUBSCRIPTION", subscription);
        return true;
    }

    // Tells whether *properties* are text, and not so large that Python has to check them.
    static bool are_usual(const Properties& properties) {
        std::size_t size = 0;
        for (auto& [name, value] : properties) {
            if (!is_utf8(name) || !is_utf8(value)) return false;
            size += name.size() + value.size() + 16;
        }
        return size <= MOST_BYTES;
    }

    // Makes a dead letter of a message that has failed. *count* is the new count if the retries are
    // used up, otherwise -1.
    bool bury(Draft& draft, const Failure& failure, std::int64_t count) const {
        if (!is_own(draft.properties, draft.topic)) return false;
        draft.properties.erase("FAILURE_STAMP");  // who brings the message back begins anew
        return describe(draft, failure) && has_room(draft.properties) && add_origin(draft) &&
               (count < 0 || write_count(draft.properties, count, 0, -1)) &&
               are_usual(draft.properties);
    }

    // Replaces what the properties say of the last failure.
    bool describe(Draft& draft, const Failure& failure) const {
        Earlier earlier;
        if (!is_own(draft.properties, draft.topic)) return false;
        if (!read_failure(draft, earlier)) return false;
        if (failure.attempt == nullptr && !earlier.history.empty()) return false;
        for (auto& [name, value] : failure.changes) draft.properties[name] = value;
        return failure.attempt == nullptr || failure.attempt->write(draft.properties, earlier);
    }

    // Tells whether Python would not shorten what *properties* say of a failure.
    bool has_room(const Properties& properties) const {
        std::size_t size = 0;
        for (auto each = properties.lower_bound("FAILURE_");
             each != properties.end() && each->first.rfind("FAILURE_", 0) == 0; ++each)
            size += each->second.size();
        return size <= room;
    }

    // Writes a letter's count, its delay, and its level; false if Python has to.
    bool write_count(Properties& properties, std::int64_t count, double delay, long level) const {
        properties["RECONSUMETIMES"] = std::to_string(count);
        properties["DELAY_TIME"] = std::to_string(std::llrint(delay * 1000));
        if (writes_level) properties["DELAY"] = std::to_string(level);
        return count <= INT_MAX;
    }

    // Makes a retry letter. *level* is -1 if none is given, and *delay* is negative if none is
    // given. On success *delay* is the letter's delay in seconds.
    bool apply(Draft& draft, long level, double& delay) const {
        std::int64_t count;
        if (!is_own(draft.properties, draft.topic)) return false;
        if (!read_count(draft.properties, count) || ++count > most) return false;
        long written = -1;
        if (delay < 0) {
            written = std::min<std::int64_t>(level < 0 ? count : level, delays.size());
            delay = written > 0 ? delays[written - 1] : 0;
        }
        return write_retry(draft, count, delay, written);
    }

    // Makes the retry letter of a message that has failed, when a policy has decided the new count,
    // the delay and the level.
    bool fail(Draft& draft, const Failure& failure, std::int64_t count, double delay,
              long level) const {
        return describe(draft, failure) && write_retry(draft, count, delay, level);
    }

    // Adds what each retry letter has; false if Python has to make it.
    bool write_retry(Draft& draft, std::int64_t count, double delay, long level) const {
        if (!add_origin(draft)) return false;
        // Only letters with an identity: see `pulsar_retry.letters.identity`.
        if (draft.topic.rfind("non-persistent:", 0) == 0) return false;
        const std::string& identity = draft.properties["ORIGIN_MESSAGE_ID"];
        if (identity != draft.id && (identity.empty() || draft.producer.rfind(IDENTITY, 0) != 0))
            return false;

        draft.properties.emplace("RETRY_TOPIC", retry_topic);
        return write_count(draft.properties, count, delay, level) && are_usual(draft.properties);
    }

    static constexpr std::size_t MOST_BYTES = 64 << 10;
};

}  // namespace
