// The hand-off of letters without the interpreter.
//
// A hand-off publishes a letter, waits for its receipt, and then acknowledges the original message.
// pulsar-client calls a callback on one of its own threads for each receipt and for each
// acknowledgement. If those callbacks are Python, the interpreter's lock changes hands twice for
// each letter, and that costs more than the letter. Here the callbacks are C++: they only put the
// outcome into a list, and Python takes many outcomes at a time.
//
// This module is not linked with pulsar-client's library: see reach.hpp.
//
// Rules that keep it safe:
// - The callbacks never touch Python: no reference counts, no interpreter's lock.
// - No thread waits for the interpreter's lock while it holds `State::mutex`.
// - What a callback needs is owned by its job; Python's objects are released when Python takes the
//   outcome, so not on pulsar-client's threads.
// - A forked child must not use what its parent made: the library's threads do not exist there.

#include <cxxabi.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <ctime>
#include <mutex>
#include <random>
#include <set>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <vector>

#include "reach.hpp"

namespace {

using pulsar::Consumer;

using ResultCallback = std::function<void(Result)>;

// The library's functions that this module needs.
struct Library : Common {
    const std::string& (*topic)(const Message*);
    const std::string& (*producer)(const Message*);
    std::int32_t (*partition)(const MessageId*);
    MessageBuilder& (*set_properties)(MessageBuilder*, const Properties&);
    void (*acknowledge)(Consumer*, const Message&, const ResultCallback&);
    void (*negative_acknowledge)(Consumer*, const MessageId&);
} library;

PyObject* message_type;
PyObject* producer_type;
PyObject* consumer_type;
PyObject* id_type;

constexpr const char* CONSUMER = "N6pulsar8ConsumerE";
constexpr const char* MESSAGE_ID = "N6pulsar9MessageIdE";

// -- the state that callbacks share with Python --------------------------------------------------

// One letter in flight. The original is held here; *token* and *owner* are Python's references.
struct Job {
    Message original;
    Consumer* consumer = nullptr;
    PyObject* token = nullptr;
    PyObject* owner = nullptr;
    bool is_out = false;      // the letter is published, and the acknowledgement was requested
    bool given_up = false;    // nobody waits for the outcome any more
    bool is_sending = false;   // the thread that sends uses it, so it must not be released
    bool has_receipt = false;  // while it is being sent, its receipt has come
    Result receipt = ResultOk;
};

// A letter that another thread sends; see `post_letter`.
struct Post {
    std::uint64_t id;
    Producer* producer;
    Properties properties;
    std::uint64_t deliver_at;
};

struct Outcome {
    std::uint64_t id;
    Job job;
    Result result;
};

struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::unordered_map<std::uint64_t, Job> flying;
    std::vector<Outcome> ready;
    std::uint64_t last = 0;
    std::size_t wanted = 1;  // how many outcomes a waiting thread is woken for
    bool is_woken = false;
    std::vector<Post> posts;
    std::condition_variable posted;
    bool has_poster = false;
    bool is_poster_idle = false;  // it waits for the next post, however many letters are in flight
    const pid_t pid = getpid();

    // Whether to send the posts now. While other letters are in flight, it is worth waiting for
    // more posts: each time that the thread wakes up costs more than sending a letter.
    bool has_posts() const { return !posts.empty() && 2 * posts.size() >= flying.size(); }

    // Moves a job to the outcomes, if it is still in flight. Called with the mutex held.
    void end(std::uint64_t id, Result result) {
        auto found = flying.find(id);
        if (found == flying.end()) return;
        ready.push_back({id, std::move(found->second), result});
        flying.erase(found);
        if (ready.size() >= wanted) changed.notify_all();
    }
};

using SharedState = std::shared_ptr<State>;

void acknowledged(const SharedState& state, std::uint64_t id, Result result) noexcept {
    try {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->end(id, result);
    } catch (...) {
        // No memory: the letter stays in flight until its deadline, and then it has failed.
    }
}

void published(const SharedState& state, std::uint64_t id, Result result) noexcept {
    try {
        Message original;
        Consumer* consumer;
        {
            std::lock_guard<std::mutex> lock(state->mutex);
            auto found = state->flying.find(id);
            if (found == state->flying.end()) return;  // given up: the original comes again
            if (found->second.is_sending) {  // `send_post` calls this function again
                found->second.has_receipt = true;
                found->second.receipt = result;
                return;
            }
            if (result != ResultOk || found->second.given_up) return state->end(id, result);
            // From here on the job is not erased before the acknowledgement has its result, so
            // the consumer stays alive.
            found->second.is_out = true;
            original = found->second.original;
            consumer = found->second.consumer;
        }
        try {
            library.acknowledge(consumer, original,
                                [state, id](Result result) { acknowledged(state, id, result); });
        } catch (...) {
            acknowledged(state, id, pulsar::ResultUnknownError);
        }
    } catch (...) {
        // As in `acknowledged`.
    }
}

// -- messages ------------------------------------------------------------------------------------

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

// Returns a dict of *properties*, which are UTF-8; null with an exception set if that fails.
PyObject* dict_of(const Properties& properties) {
    PyObject* result = PyDict_New();
    if (result == nullptr) return nullptr;
    for (auto& [name, value] : properties) {
        PyObject* key = PyUnicode_FromStringAndSize(name.data(), Py_ssize_t(name.size()));
        PyObject* text = PyUnicode_FromStringAndSize(value.data(), Py_ssize_t(value.size()));
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

// -- the usual retry letter --------------------------------------------------------------------------

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

// What differs between failures of one kind. `pulsar_retry.wire.codecs` has the rule; this is a
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

    // Reads how often a message was reconsumed. False: that is odd, so Python makes its dead letter.
    static bool read_count(const Properties& properties, std::int64_t& count) {
        count = 0;
        auto counted = properties.find("RECONSUMETIMES");
        return counted == properties.end() || read_number(counted->second, 9, count);
    }

    // Removes what the last failure was from the properties of a letter of this package, and keeps
    // what it says of all of them. False if they say something else that has to be removed.
    bool read_failure(Properties& properties, const std::string& producer, Earlier& earlier) const {
        static const std::set<std::string> last = {"FAILURE_ATTEMPT",     "FAILURE_ERROR",
                                                   "FAILURE_FINGERPRINT", "FAILURE_MESSAGE",
                                                   "FAILURE_STAGE",       "FAILURE_TIME"};
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
               (producer.rfind(IDENTITY, 0) == 0 && earlier.read(history, published));
    }

    // Adds the origin's properties that are absent; false if the topic is not known.
    bool add_origin(Properties& properties, const std::string& topic, const std::string& id) const {
        if (properties.find("REAL_TOPIC") == properties.end()) {
            auto known = real_topics.find(topic);
            if (known == real_topics.end()) return false;
            properties["REAL_TOPIC"] = known->second;
        }
        auto text_of = [&properties](const char* name) {
            auto found = properties.find(name);
            return found == properties.end() ? std::string() : found->second;
        };
        std::string origin = text_of("ORIGIN_MESSAGE_ID");
        if (origin.empty()) origin = text_of("ORIGIN_MESSAGE_IDY_TIME");
        if (origin.empty()) origin = id;
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

    // Changes *properties*, which are those of a message, to those of its dead letter. *changes* say
    // how it has failed, and *attempt* which attempt has, unless the changes say that too. *count*
    // is the new count if the retries are used up, otherwise -1.
    bool bury(Properties& properties, const std::string& topic, const std::string& id,
              const std::string& producer, const Properties& changes, const Attempt* attempt,
              std::int64_t count) const {
        properties.erase("FAILURE_STAMP");  // who brings the message back begins anew
        return describe(properties, producer, changes, attempt) && has_room(properties) &&
               add_origin(properties, topic, id) &&
               (count < 0 || write_count(properties, count, 0, -1)) && are_usual(properties);
    }

    // Replaces what *properties* say of the last failure; the arguments are as in `bury`.
    bool describe(Properties& properties, const std::string& producer, const Properties& changes,
                  const Attempt* attempt) const {
        Earlier earlier;
        if (!read_failure(properties, producer, earlier)) return false;
        if (attempt == nullptr && !earlier.history.empty()) return false;
        for (auto& [name, value] : changes) properties[name] = value;
        return attempt == nullptr || attempt->write(properties, earlier);
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

    // Changes *properties*, which are those of a message, to those of its retry letter.
    // *level* is -1 if none is given, and *delay* is negative if none is given. On success *delay*
    // is the letter's delay in seconds.
    bool apply(Properties& properties, const std::string& topic, const std::string& id,
               const std::string& producer, long level, double& delay) const {
        std::int64_t count = 1;
        auto counted = properties.find("RECONSUMETIMES");
        if (counted != properties.end()) {
            if (!read_number(counted->second, 9, count)) return false;
            count += 1;
        }
        if (count > most) return false;
        long written = -1;
        if (delay < 0) {
            written = std::min<std::int64_t>(level < 0 ? count : level, delays.size());
            delay = written > 0 ? delays[written - 1] : 0;
        }
        return write_retry(properties, topic, id, producer, count, delay, written);
    }

    // Does what `apply` does for a failure, of which a policy has decided the new count, the delay
    // and the level. *changes* and *attempt* are as in `bury`.
    bool fail(Properties& properties, const std::string& topic, const std::string& id,
              const std::string& producer, const Properties& changes, const Attempt* attempt,
              std::int64_t count, double delay, long level) const {
        return describe(properties, producer, changes, attempt) &&
               write_retry(properties, topic, id, producer, count, delay, level);
    }

    // Adds what each retry letter has; false if Python has to make it.
    bool write_retry(Properties& properties, const std::string& topic, const std::string& id,
                     const std::string& producer, std::int64_t count, double delay,
                     long level) const {
        if (!add_origin(properties, topic, id)) return false;
        // Only letters with an identity: see `pulsar_retry.letters.identity`.
        if (topic.rfind("non-persistent:", 0) == 0) return false;
        const std::string& identity = properties["ORIGIN_MESSAGE_ID"];
        if (identity != id && (identity.empty() || producer.rfind(IDENTITY, 0) != 0))
            return false;

        properties.emplace("RETRY_TOPIC", retry_topic);
        return write_count(properties, count, delay, level) && are_usual(properties);
    }

    static constexpr std::size_t MOST_BYTES = 64 << 10;
};

std::string id_text(const Message& message) {
    return id_text(library.print_id, library.id(&message));
}

// -- Outcomes --------------------------------------------------------------------------------------

struct Outcomes {
    PyObject_HEAD
    SharedState* state;
    std::map<PyObject*, Consumer*>* consumers;  // each with a reference
};

struct Sender {
    PyObject_HEAD
    Outcomes* outcomes;
    PyObject* producer;
    Producer* raw;
};

struct Rule {
    PyObject_HEAD
    RetryRule* inner;
};

PyTypeObject* outcomes_type;
PyTypeObject* sender_type;
PyTypeObject* rule_type;

// Returns the state, or null with an exception set in a forked child.
State* state_of(Outcomes* self) {
    State* state = self->state->get();
    if (state->pid == getpid()) return state;
    PyErr_SetString(PyExc_RuntimeError, "this object belongs to the process that was forked");
    return nullptr;
}

PyObject* outcomes_new(PyTypeObject* type, PyObject*, PyObject*) {
    auto* self = allocated<Outcomes>(type);
    if (self == nullptr) return nullptr;
    return guarded([self]() -> PyObject* {
        self->state = new SharedState(std::make_shared<State>());
        self->consumers = new std::map<PyObject*, Consumer*>();
        return reinterpret_cast<PyObject*>(self);
    });
}

void outcomes_dealloc(PyObject* object) {
    // No job is in flight: each holds a reference to its sender, which holds one to this object.
    auto* self = reinterpret_cast<Outcomes*>(object);
    PyTypeObject* type = Py_TYPE(object);
    if (self->state != nullptr && (*self->state)->pid == getpid()) {
        if (self->consumers != nullptr)
            for (auto& [consumer, raw] : *self->consumers) Py_DECREF(consumer);
        delete self->consumers;
        delete self->state;
    }  // in a forked child, a mutex may be locked by a thread that does not exist: leave it
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyObject* outcomes_sender(PyObject* object, PyObject* producer) {
    auto* raw = static_cast<Producer*>(pointer_of(producer, producer_type, PRODUCER));
    if (raw == nullptr) return nullptr;
    auto* sender = allocated<Sender>(sender_type);
    if (sender == nullptr) return nullptr;
    Py_INCREF(object);
    Py_INCREF(producer);
    sender->outcomes = reinterpret_cast<Outcomes*>(object);
    sender->producer = producer;
    sender->raw = raw;
    return reinterpret_cast<PyObject*>(sender);
}

void release(Job& job) {
    Py_XDECREF(job.token);
    Py_XDECREF(job.owner);
    job.token = job.owner = nullptr;
}

// take(timeout_ms, few, pause_us_each, pause_us_most)
PyObject* outcomes_take(PyObject* object, PyObject* arguments) {
    auto* self = reinterpret_cast<Outcomes*>(object);
    long timeout, few, each, most;
    if (!PyArg_ParseTuple(arguments, "llll", &timeout, &few, &each, &most)) return nullptr;
    State* state = state_of(self);
    if (state == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        std::vector<Outcome> taken;
        Py_BEGIN_ALLOW_THREADS
        {
            std::unique_lock<std::mutex> lock(state->mutex);
            auto has_enough = [state] {
                return state->is_woken || state->ready.size() >= state->wanted;
            };
            state->changed.wait_for(lock, std::chrono::milliseconds(timeout), has_enough);
            // With many letters in flight it is worth waiting for more outcomes, so that Python
            // runs for many of them at once.
            std::size_t flying = state->flying.size();
            if (!state->is_woken && !state->ready.empty() && flying > std::size_t(few)) {
                state->wanted = state->ready.size() + flying / 2;
                auto pause = std::min<long>(long(flying) * each, most);
                state->changed.wait_for(lock, std::chrono::microseconds(pause), has_enough);
                state->wanted = 1;
            }
            state->is_woken = false;
            taken.swap(state->ready);
        }
        Py_END_ALLOW_THREADS
        PyObject* succeeded = PyList_New(0);
        PyObject* failed = PyList_New(0);
        bool is_complete = succeeded != nullptr && failed != nullptr;
        for (auto& [id, job, result] : taken) {
            if (is_complete && !job.given_up) {
                if (result == ResultOk) {
                    is_complete = PyList_Append(succeeded, job.token) == 0;
                } else {
                    PyObject* failure = Py_BuildValue("(OOi)", job.token,
                                                      job.is_out ? Py_True : Py_False, int(result));
                    is_complete = failure != nullptr && PyList_Append(failed, failure) == 0;
                    Py_XDECREF(failure);
                }
            }
            release(job);
        }
        PyObject* both = is_complete ? PyTuple_Pack(2, succeeded, failed) : nullptr;
        Py_XDECREF(succeeded);
        Py_XDECREF(failed);
        return both;
    });
}

PyObject* outcomes_wake(PyObject* object, PyObject*) {
    State* state = state_of(reinterpret_cast<Outcomes*>(object));
    if (state == nullptr) return nullptr;
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        state->is_woken = true;
    }
    state->changed.notify_all();
    Py_RETURN_NONE;
}

// Finds the job of an id in flight, or with an outcome that was not taken; null if it was taken.
// Called with the mutex held.
Job* job_of(State* state, std::uint64_t id) {
    auto found = state->flying.find(id);
    if (found != state->flying.end()) return &found->second;
    for (auto& outcome : state->ready)
        if (outcome.id == id) return &outcome.job;
    return nullptr;
}

PyObject* outcomes_is_out(PyObject* object, PyObject* argument) {
    State* state = state_of(reinterpret_cast<Outcomes*>(object));
    if (state == nullptr) return nullptr;
    std::uint64_t id = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return nullptr;
    std::lock_guard<std::mutex> lock(state->mutex);
    Job* job = job_of(state, id);
    return PyBool_FromLong(job != nullptr && job->is_out);
}

PyObject* outcomes_give_up(PyObject* object, PyObject* argument) {
    State* state = state_of(reinterpret_cast<Outcomes*>(object));
    if (state == nullptr) return nullptr;
    std::uint64_t id = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return nullptr;
    return guarded([=]() -> PyObject* {
        Job erased;
        bool is_out = false;
        {
            std::lock_guard<std::mutex> lock(state->mutex);
            auto found = state->flying.find(id);
            bool is_free = found != state->flying.end() && !found->second.is_sending;
            if (is_free && !found->second.is_out) {
                erased = std::move(found->second);
                state->flying.erase(found);
            } else if (Job* job = job_of(state, id)) {
                // The references are released when the outcome is taken.
                is_out = job->is_out;
                job->given_up = true;
            }  // otherwise the outcome was taken just now: false, since a duplicate is no loss
        }
        release(erased);
        return PyBool_FromLong(is_out);
    });
}

Py_ssize_t outcomes_length(PyObject* object) {
    State* state = state_of(reinterpret_cast<Outcomes*>(object));
    if (state == nullptr) return -1;
    std::lock_guard<std::mutex> lock(state->mutex);
    return Py_ssize_t(state->flying.size() + state->ready.size());
}

// -- Sender ----------------------------------------------------------------------------------------

void sender_dealloc(PyObject* object) {
    auto* self = reinterpret_cast<Sender*>(object);
    PyTypeObject* type = Py_TYPE(object);
    Py_XDECREF(self->producer);
    Py_XDECREF(reinterpret_cast<PyObject*>(self->outcomes));
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

// Returns the C++ consumer of a Python one, which is kept alive from now on.
Consumer* consumer_of(Outcomes* outcomes, PyObject* object) {
    auto known = outcomes->consumers->find(object);
    if (known != outcomes->consumers->end()) return known->second;
    auto* raw = static_cast<Consumer*>(pointer_of(object, consumer_type, CONSUMER));
    if (raw == nullptr) return nullptr;
    // The conversion may have let another thread do the same.
    if (outcomes->consumers->emplace(object, raw).second) Py_INCREF(object);
    return raw;
}

// Sends a letter made from *original*; returns its id.
PyObject* send_letter(Sender* self, State* state, const Message& original, PyObject* source,
                      Properties& properties, std::uint64_t deliver_at, PyObject* token) {
    Consumer* consumer = consumer_of(self->outcomes, source);
    if (consumer == nullptr) return nullptr;
    SharedState shared = *self->outcomes->state;
    Producer* producer = self->raw;
    Job job;
    job.original = original;
    job.consumer = consumer;
    job.token = token;
    job.owner = reinterpret_cast<PyObject*>(self);
    std::uint64_t id;
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        id = ++state->last;
        state->flying.emplace(id, job);
    }
    Py_INCREF(job.token);
    Py_INCREF(job.owner);
    std::string problem;
    Py_BEGIN_ALLOW_THREADS
    try {
        Message letter = build(job.original, properties, deliver_at);
        library.send(producer, letter, [shared, id](Result result, const MessageId&) {
            published(shared, id, result);
        });
    } catch (abi::__forced_unwind&) {
        throw;  // the thread is being ended
    } catch (...) {
        problem = "pulsar-client's library has raised an exception";
    }
    Py_END_ALLOW_THREADS
    if (problem.empty()) return PyLong_FromUnsignedLongLong(id);
    Job erased;
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        auto found = state->flying.find(id);
        if (found != state->flying.end() && found->second.is_out) {
            found->second.given_up = true;
        } else if (found != state->flying.end()) {
            erased = std::move(found->second);
            state->flying.erase(found);
        }
    }
    release(erased);
    PyErr_SetString(PyExc_RuntimeError, problem.c_str());
    return nullptr;
}

// Builds and sends the letter of a post, unless it was given up. Called without the interpreter.
void send_post(const SharedState& state, const Post& post) {
    Message original;
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        auto found = state->flying.find(post.id);
        if (found == state->flying.end()) return;
        found->second.is_sending = true;
        original = found->second.original;
    }
    Result result = ResultOk;
    try {
        Message letter = build(original, post.properties, post.deliver_at);
        library.send(post.producer, letter,
                     [state, id = post.id](Result result, const MessageId&) {
                         published(state, id, result);
                     });
    } catch (abi::__forced_unwind&) {
        throw;  // the thread is being ended
    } catch (...) {
        result = pulsar::ResultUnknownError;
    }
    bool has_receipt;
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        Job& job = state->flying.at(post.id);  // nothing ends it while it is being sent
        job.is_sending = false;
        has_receipt = job.has_receipt;
        if (has_receipt) result = job.receipt;
    }
    if (has_receipt)
        published(state, post.id, result);
    else if (result != ResultOk)
        acknowledged(state, post.id, result);  // which ends the job
}

// Sends posts until there has been none for a second.
void send_posts(SharedState state) {
    std::vector<Post> posts;
    std::unique_lock<std::mutex> lock(state->mutex);
    while (true) {
        state->posted.wait_for(lock, std::chrono::milliseconds(1),
                               [&state] { return state->has_posts(); });
        if (state->posts.empty()) {
            state->is_poster_idle = true;
            state->posted.wait_for(lock, std::chrono::seconds(1),
                                   [&state] { return !state->posts.empty(); });
            state->is_poster_idle = false;
        }
        if (state->posts.empty()) {
            state->has_poster = false;
            return;
        }
        posts.swap(state->posts);
        lock.unlock();
        for (auto& post : posts) send_post(state, post);
        posts.clear();
        lock.lock();
    }
}

// Does what `send_letter` does on another thread. This one keeps the interpreter's lock, so that it
// does not have to wait for it again after each letter, when other threads want it too.
PyObject* post_letter(Sender* self, State* state, const Message& original, PyObject* source,
                      Properties& properties, std::uint64_t deliver_at, PyObject* token) {
    Consumer* consumer = consumer_of(self->outcomes, source);
    if (consumer == nullptr) return nullptr;
    Job job;
    job.original = original;
    job.consumer = consumer;
    job.token = token;
    job.owner = reinterpret_cast<PyObject*>(self);
    std::unique_lock<std::mutex> lock(state->mutex);
    if (!state->has_poster) {
        try {
            std::thread(send_posts, *self->outcomes->state).detach();
        } catch (const std::system_error&) {  // no thread can be started
            lock.unlock();
            return send_letter(self, state, original, source, properties, deliver_at, token);
        }
        state->has_poster = true;
    }
    std::uint64_t id = ++state->last;  // first: if there is no memory below, no job has this id
    PyObject* result = PyLong_FromUnsignedLongLong(id);
    if (result == nullptr) return nullptr;
    state->posts.push_back({id, self->raw, std::move(properties), deliver_at});
    state->flying.emplace(id, job);
    Py_INCREF(job.token);
    Py_INCREF(job.owner);
    if (state->is_poster_idle || state->has_posts()) state->posted.notify_one();
    return result;
}

// Does what `post_letter` or `send_letter` does.
PyObject* hand_on(Sender* self, State* state, const Message& original, PyObject* source,
                  Properties& properties, std::uint64_t deliver_at, PyObject* token,
                  PyObject* posts) {
    auto* publish = posts == Py_True ? post_letter : send_letter;
    return publish(self, state, original, source, properties, deliver_at, token);
}

// send(message, consumer, properties, deliver_at_ms, token, posts) -> id
PyObject* sender_send(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
    auto* self = reinterpret_cast<Sender*>(object);
    if (count != 6) {
        PyErr_SetString(PyExc_TypeError, "send takes six arguments");
        return nullptr;
    }
    State* state = state_of(self->outcomes);
    if (state == nullptr) return nullptr;
    auto* original = static_cast<Message*>(pointer_of(arguments[0], message_type, MESSAGE));
    if (original == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        Properties properties;
        if (!read_properties(arguments[2], properties)) return nullptr;
        std::uint64_t deliver_at = PyLong_AsUnsignedLongLong(arguments[3]);
        if (PyErr_Occurred()) return nullptr;
        return hand_on(self, state, *original, arguments[1], properties, deliver_at, arguments[4],
                       arguments[5]);
    });
}

// What the methods of a sender that take a rule and a message have in common.
struct Call {
    Sender* self;
    const RetryRule* rule;
    State* state;
    const Message* original;

    // Reads the first two of *wanted* arguments; false with an exception set if that fails.
    bool open(PyObject* object, PyObject* const* arguments, Py_ssize_t size, Py_ssize_t wanted) {
        if (size != wanted || Py_TYPE(arguments[0]) != rule_type) {
            PyErr_Format(PyExc_TypeError, "expected %zd arguments, of which the first is a Rule",
                         wanted);
            return false;
        }
        self = reinterpret_cast<Sender*>(object);
        rule = reinterpret_cast<Rule*>(arguments[0])->inner;
        state = state_of(self->outcomes);
        if (state == nullptr) return false;
        original = static_cast<Message*>(pointer_of(arguments[1], message_type, MESSAGE));
        return original != nullptr;
    }
};

// retry(rule, message, consumer, delay or -1, level or -1, longest_delay, now, token) -> id, or None
PyObject* sender_retry(PyObject* object, PyObject* const* arguments, Py_ssize_t size) {
    Call call;
    if (!call.open(object, arguments, size, 8)) return nullptr;
    double delay = PyFloat_AsDouble(arguments[3]);
    long level = PyLong_AsLong(arguments[4]);
    double longest = PyFloat_AsDouble(arguments[5]);
    double now = PyFloat_AsDouble(arguments[6]);
    if (PyErr_Occurred()) return nullptr;
    return guarded([=]() mutable -> PyObject* {
        auto [self, rule, state, original] = call;
        Properties properties = library.properties(original);
        if (!rule->apply(properties, library.topic(original), id_text(*original),
                         library.producer(original), level, delay) ||
            delay > longest)
            Py_RETURN_NONE;
        std::uint64_t deliver_at = delay > 0 ? std::llrint((now + delay) * 1000) : 0;
        return send_letter(self, state, *original, arguments[2], properties, deliver_at,
                           arguments[7]);
    });
}

// fail(rule, message, consumer, changes, attempt, count, delay, level or -1, least delay,
// longest_delay, now, token, posts) -> id, or None
PyObject* sender_fail(PyObject* object, PyObject* const* arguments, Py_ssize_t size) {
    Call call;
    if (!call.open(object, arguments, size, 13)) return nullptr;
    std::int64_t count = PyLong_AsLongLong(arguments[5]);
    double delay = PyFloat_AsDouble(arguments[6]);
    long level = PyLong_AsLong(arguments[7]);
    double least = PyFloat_AsDouble(arguments[8]);
    double longest = PyFloat_AsDouble(arguments[9]);
    double now = PyFloat_AsDouble(arguments[10]);
    if (PyErr_Occurred()) return nullptr;
    return guarded([=]() -> PyObject* {
        auto [self, rule, state, original] = call;
        Failure failure;
        if (!failure.read(arguments[3], arguments[4])) return nullptr;
        Properties properties = library.properties(original);
        double wait = std::max(delay, least);
        if (wait > longest ||
            !rule->fail(properties, library.topic(original), id_text(*original),
                        library.producer(original), failure.changes, failure.attempt, count, delay,
                        level))
            Py_RETURN_NONE;
        std::uint64_t deliver_at = wait > 0 ? std::llrint((now + wait) * 1000) : 0;
        return hand_on(self, state, *original, arguments[2], properties, deliver_at, arguments[11],
                       arguments[12]);
    });
}

// dead(rule, message, consumer, changes, attempt or None, count or -1, token, posts) -> id, or None
PyObject* sender_dead(PyObject* object, PyObject* const* arguments, Py_ssize_t size) {
    Call call;
    if (!call.open(object, arguments, size, 8)) return nullptr;
    std::int64_t count = PyLong_AsLongLong(arguments[5]);
    if (PyErr_Occurred()) return nullptr;
    return guarded([=]() -> PyObject* {
        auto [self, rule, state, original] = call;
        Failure failure;
        if (!failure.read(arguments[3], arguments[4])) return nullptr;
        Properties properties = library.properties(original);
        if (!rule->bury(properties, library.topic(original), id_text(*original),
                        library.producer(original), failure.changes, failure.attempt, count))
            Py_RETURN_NONE;
        return hand_on(self, state, *original, arguments[2], properties, 0, arguments[6],
                       arguments[7]);
    });
}

// -- Rule ------------------------------------------------------------------------------------------

// Rule(retry_topic, subscription, most, delays, writes_level, failure_names, room)
PyObject* rule_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    const char *retry_topic, *subscription;
    long long most;
    PyObject *delays, *names;
    int writes_level;
    Py_ssize_t room;
    if (!PyArg_ParseTuple(arguments, "ssLOpO!n", &retry_topic, &subscription, &most, &delays,
                          &writes_level, &PyTuple_Type, &names, &room))
        return nullptr;
    return guarded([=]() -> PyObject* {
        auto rule = std::make_unique<RetryRule>();
        rule->retry_topic = retry_topic;
        rule->subscription = subscription;
        rule->most = most;
        rule->writes_level = writes_level != 0;
        rule->room = std::size_t(room);
        Py_ssize_t count = PySequence_Size(delays);
        if (count < 0) return nullptr;
        for (Py_ssize_t each = 0; each < count; each++) {
            PyObject* item = PySequence_GetItem(delays, each);
            if (item == nullptr) return nullptr;
            rule->delays.push_back(PyFloat_AsDouble(item));
            Py_DECREF(item);
            if (PyErr_Occurred()) return nullptr;
        }
        if (!read_names(names, rule->failure_names)) return nullptr;
        auto* self = allocated<Rule>(type);
        if (self != nullptr) self->inner = rule.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

// topic(name, real_topic): messages from *name* were first published to *real_topic*
PyObject* rule_topic(PyObject* object, PyObject* arguments) {
    const char *name, *real_topic;
    if (!PyArg_ParseTuple(arguments, "ss", &name, &real_topic)) return nullptr;
    return guarded([=]() -> PyObject* {
        reinterpret_cast<Rule*>(object)->inner->real_topics[name] = real_topic;
        Py_RETURN_NONE;
    });
}

// retried(properties, topic, id, producer, delay, level) -> (properties, delay), or None; for a test
PyObject* rule_retried(PyObject* object, PyObject* arguments) {
    auto* rule = reinterpret_cast<Rule*>(object)->inner;
    PyObject* dict;
    const char *topic, *id, *producer;
    double delay;
    long level;
    if (!PyArg_ParseTuple(arguments, "Osssdl", &dict, &topic, &id, &producer, &delay, &level))
        return nullptr;
    return guarded([=]() mutable -> PyObject* {
        Properties properties;
        if (!read_properties(dict, properties)) return nullptr;
        if (!rule->apply(properties, topic, id, producer, level, delay)) Py_RETURN_NONE;
        PyObject* result = dict_of(properties);
        if (result == nullptr) return nullptr;
        return Py_BuildValue("(Nd)", result, delay);
    });
}

// failed(properties, topic, id, producer, changes, attempt, count, delay, level) -> properties, or
// None; for a test
PyObject* rule_failed(PyObject* object, PyObject* arguments) {
    auto* rule = reinterpret_cast<Rule*>(object)->inner;
    PyObject *carried, *added, *source;
    const char *topic, *id, *producer;
    long long count;
    double delay;
    long level;
    if (!PyArg_ParseTuple(arguments, "OsssOOLdl", &carried, &topic, &id, &producer, &added, &source,
                          &count, &delay, &level))
        return nullptr;
    return guarded([=]() -> PyObject* {
        Properties properties;
        Failure failure;
        if (!read_properties(carried, properties) || !failure.read(added, source)) return nullptr;
        if (!rule->fail(properties, topic, id, producer, failure.changes, failure.attempt, count,
                        delay, level))
            Py_RETURN_NONE;
        return dict_of(properties);
    });
}

// count(message) -> how often it was reconsumed; None: Python reads that
PyObject* rule_count(PyObject* object, PyObject* source) {
    auto* message = static_cast<Message*>(pointer_of(source, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        std::int64_t count;
        if (!RetryRule::read_count(library.properties(message), count)) Py_RETURN_NONE;
        return PyLong_FromLongLong(count);
    });
}

// buried(properties, topic, id, producer, changes, attempt or None, count) -> properties, or None;
// for a test
PyObject* rule_buried(PyObject* object, PyObject* arguments) {
    auto* rule = reinterpret_cast<Rule*>(object)->inner;
    PyObject *carried, *added, *source;
    const char *topic, *id, *producer;
    long long count;
    if (!PyArg_ParseTuple(arguments, "OsssOOL", &carried, &topic, &id, &producer, &added, &source,
                          &count))
        return nullptr;
    return guarded([=]() -> PyObject* {
        Properties properties;
        Failure failure;
        if (!read_properties(carried, properties) || !failure.read(added, source)) return nullptr;
        if (!rule->bury(properties, topic, id, producer, failure.changes, failure.attempt, count))
            Py_RETURN_NONE;
        return dict_of(properties);
    });
}

// -- Prints: letters that are equal -----------------------------------------------------------------

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

// -- the module's functions ------------------------------------------------------------------------

// copied(message, properties) -> what a letter made from *message* has
PyObject* copied(PyObject*, PyObject* arguments) {
    PyObject *object, *dict;
    if (!PyArg_ParseTuple(arguments, "OO", &object, &dict)) return nullptr;
    auto* original = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (original == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        Properties properties;
        if (!read_properties(dict, properties)) return nullptr;
        return described(library, build(*original, properties, 1));
    });
}

// position(message) -> (ledger, entry, partition, batch index), as `runtime.raw.position_of`
PyObject* position(PyObject*, PyObject* object) {
    auto* message = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        const MessageId& id = library.id(message);
        return Py_BuildValue("(LLii)", static_cast<long long>(library.ledger(&id)),
                             static_cast<long long>(library.entry(&id)),
                             static_cast<int>(library.partition(&id)),
                             static_cast<int>(library.batch(&id)));
    });
}

// nack(consumer, ids): has messages redelivered. In Python, each call gives the interpreter's lock
// away, and pulsar-client's thread wakes up for each of them.
PyObject* nack(PyObject*, PyObject* arguments) {
    PyObject *source, *list;
    if (!PyArg_ParseTuple(arguments, "OO!", &source, &PyList_Type, &list)) return nullptr;
    auto* consumer = static_cast<Consumer*>(pointer_of(source, consumer_type, CONSUMER));
    if (consumer == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        std::vector<const MessageId*> ids(std::size_t(PyList_Size(list)));
        for (std::size_t each = 0; each < ids.size(); ++each) {
            PyObject* object = PyList_GetItem(list, Py_ssize_t(each));
            if (object == nullptr) return nullptr;
            ids[each] = static_cast<const MessageId*>(pointer_of(object, id_type, MESSAGE_ID));
            if (ids[each] == nullptr) return nullptr;
        }
        Py_BEGIN_ALLOW_THREADS
        for (auto* id : ids) library.negative_acknowledge(consumer, *id);
        Py_END_ALLOW_THREADS
        Py_RETURN_NONE;
    });
}

// is_text(bytes): tells whether they are UTF-8, for a test
PyObject* is_text(PyObject*, PyObject* object) {
    char* data;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(object, &data, &size) != 0) return nullptr;
    return guarded([=]() -> PyObject* { return PyBool_FromLong(is_utf8(std::string(data, size))); });
}

// read(message) -> (topic, id as letters have it, producer), for a test
PyObject* read_message(PyObject*, PyObject* object) {
    auto* message = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        return Py_BuildValue("(NNN)", bytes_of(library.topic(message)),
                             bytes_of(id_text(*message)),
                             bytes_of(library.producer(message)));
    });
}

// acknowledge(message, consumer) -> the result, or None if it does not come at once; for a test
PyObject* acknowledge_message(PyObject*, PyObject* arguments) {
    PyObject *object, *source;
    if (!PyArg_ParseTuple(arguments, "OO", &object, &source)) return nullptr;
    auto* message = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    auto* consumer = static_cast<Consumer*>(pointer_of(source, consumer_type, CONSUMER));
    if (consumer == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        auto told = std::make_shared<int>(INT_MIN);
        library.acknowledge(consumer, *message, [told](Result result) { *told = result; });
        if (*told == INT_MIN) Py_RETURN_NONE;
        return PyLong_FromLong(*told);
    });
}

#define MAP_OF_STRINGS                                                          \
    "St3mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES7_St4lessIS7_" \
    "ESaISt4pairIKS7_S7_EEE"
bool found_all(const char* path) {
    const Function functions[] = {
        {OF_MESSAGE "12getTopicNameB5cxx11Ev", &library.topic},
        {OF_MESSAGE "15getProducerNameB5cxx11Ev", &library.producer},
        {"_ZNK6pulsar9MessageId9partitionEv", &library.partition},
        {OF_BUILDER "13setPropertiesERK" MAP_OF_STRINGS, &library.set_properties},
        {"_ZN6pulsar8Consumer16acknowledgeAsyncERKNS_7MessageERKSt8functionIFvNS_6ResultEEE",
         &library.acknowledge},
        {"_ZN6pulsar8Consumer19negativeAcknowledgeERKNS_9MessageIdE",
         &library.negative_acknowledge},
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

PyMethodDef outcomes_methods[] = {
    {"sender", outcomes_sender, METH_O, "Return a `Sender` for one of pulsar-client's producers."},
    {"take", outcomes_take, METH_VARARGS,
     "Wait for outcomes; return the tokens that succeeded, and (token, is_out, result) of others."},
    {"wake", outcomes_wake, METH_NOARGS, "Have a waiting `take` return at once."},
    {"is_out", outcomes_is_out, METH_O, "Tell whether the letter of an id is published."},
    {"give_up", outcomes_give_up, METH_O,
     "Expect no outcome for an id; tell whether its letter is published. If not, its original will "
     "not be acknowledged."},
    {}};
PyType_Slot outcomes_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(outcomes_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(outcomes_dealloc)},
    {Py_tp_methods, outcomes_methods},
    {Py_mp_length, reinterpret_cast<void*>(outcomes_length)},
    {Py_tp_doc, const_cast<char*>("The letters in flight of one hand-off, and their outcomes.")},
    {}};
PyType_Spec outcomes_spec = {"pulsar_retry.native._handoff.Outcomes", sizeof(Outcomes), 0,
                             Py_TPFLAGS_DEFAULT, outcomes_slots};

PyMethodDef sender_methods[] = {
    {"send", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(sender_send)),
     METH_FASTCALL,
     "send(message, consumer, properties, deliver_at_ms, token, posts): publish a letter made from "
     "message, and acknowledge message when the letter is published. Return the id of both. With "
     "posts, another thread sends it."},
    {"retry", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(sender_retry)),
     METH_FASTCALL,
     "retry(rule, message, consumer, delay, level, longest_delay, now, token): do what `send` does with "
     "the properties of a usual retry letter; return None, and do nothing, if it is not one."},
    {"fail", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(sender_fail)), METH_FASTCALL,
     "fail(rule, message, consumer, changes, attempt, count, delay, level, least_delay, "
     "longest_delay, now, token, posts): do what `retry` does for the failure of a message, of which "
     "changes and attempt say how it has failed."},
    {"dead", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(sender_dead)), METH_FASTCALL,
     "dead(rule, message, consumer, changes, attempt, count, token, posts): do what `send` does with "
     "the properties of a usual dead letter, of which changes say how the message has failed; return "
     "None, and do nothing, if it is not one."},
    {}};
PyType_Slot sender_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(sender_dealloc)},
                              {Py_tp_methods, sender_methods},
                              {Py_tp_doc, const_cast<char*>("Sends letters with one producer.")},
                              {}};
PyType_Spec sender_spec = {"pulsar_retry.native._handoff.Sender", sizeof(Sender), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, sender_slots};

PyMethodDef rule_methods[] = {
    {"count", rule_count, METH_O,
     "Return how often a message was reconsumed; None if Python has to read that."},
    {"buried", rule_buried, METH_VARARGS,
     "buried(properties, topic, id, producer, changes, attempt, count): return the properties of the "
     "dead letter, or None; for a test."},
    {"failed", rule_failed, METH_VARARGS,
     "failed(properties, topic, id, producer, changes, attempt, count, delay, level): return the "
     "properties of the retry letter of a failure, or None; for a test."},
    {"topic", rule_topic, METH_VARARGS, "Say which topic the messages from a topic belong to."},
    {"retried", rule_retried, METH_VARARGS,
     "retried(properties, topic, id, producer, delay, level): return the properties of the letter "
     "and its delay, or None; for a test."},
    {}};
PyType_Slot rule_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(rule_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Rule>)},
    {Py_tp_methods, rule_methods},
    {Py_tp_doc,
     const_cast<char*>("Rule(retry_topic, subscription, most, delays, writes_level, "
                       "failure_names, room): what the usual letters of one subscription have.")},
    {}};
PyType_Spec rule_spec = {"pulsar_retry.native._handoff.Rule", sizeof(Rule), 0, Py_TPFLAGS_DEFAULT,
                         rule_slots};

PyMethodDef prints_methods[] = {
    {"of", prints_of, METH_O, "Return the fingerprint of a letter, and when it was made."},
    {"content", prints_content, METH_O, "Return the hash of a message, for a test."},
    {}};
PyType_Slot prints_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(prints_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Prints>)},
    {Py_tp_methods, prints_methods},
    {Py_tp_doc, const_cast<char*>("Prints(varying, prefix): the fingerprints of letters.")},
    {}};
PyType_Spec prints_spec = {"pulsar_retry.native._handoff.Prints", sizeof(Prints), 0,
                           Py_TPFLAGS_DEFAULT, prints_slots};

PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "Find pulsar-client's library in the process."},
    {"nack", nack, METH_VARARGS, "nack(consumer, ids): have messages redelivered."},
    {"position", position, METH_O, "Return the position of a message in its topic."},
    {"is_text", is_text, METH_O, "Tell whether bytes are UTF-8, for a test."},
    {"read", read_message, METH_O, "Return topic, id and producer of a message, for a test."},
    {"acknowledge", acknowledge_message, METH_VARARGS,
     "Acknowledge a message, and return the result if it comes at once; for a test."},
    {"copied", copied, METH_VARARGS, "Return what a letter made from a message has, for a test."},
    {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_handoff", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit__handoff() {
    prepare();
    message_type = type_capsule(typeid(Message));
    producer_type = type_capsule(typeid(Producer));
    consumer_type = type_capsule(typeid(Consumer));
    id_type = type_capsule(typeid(MessageId));
    outcomes_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&outcomes_spec));
    sender_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&sender_spec));
    rule_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&rule_spec));
    prints_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&prints_spec));
    return created(definition, {{"Outcomes", outcomes_type}, {"Rule", rule_type}, {"Prints", prints_type}});
}
