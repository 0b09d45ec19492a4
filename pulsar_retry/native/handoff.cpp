// The hand-off of letters without the interpreter.
//
// A hand-off publishes a letter, waits for its receipt, and then acknowledges the original message.
// pulsar-client calls a callback on one of its own threads for each receipt and for each
// acknowledgement. If those callbacks are Python, the interpreter's lock changes hands twice for
// each letter, and that costs more than the letter. Here the callbacks are C++: they only put the
// outcome into a list, and Python takes many outcomes at a time.
//
// This module is not linked with pulsar-client's library. It finds the library's public functions
// at run time, in the library that Python has loaded already (see `setup`), and it gets the C++
// object behind a Python object from pybind11's interface between modules. Of the library's classes
// it knows only what their public headers declare: the sizes of three small classes.
//
// Rules that keep it safe:
// - The callbacks never touch Python: no reference counts, no interpreter's lock.
// - No thread waits for the interpreter's lock while it holds `State::mutex`.
// - What a callback needs is owned by its job; Python's objects are released when Python takes the
//   outcome, so not on pulsar-client's threads.
// - A forked child must not use what its parent made: the library's threads do not exist there.

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <typeinfo>
#include <unordered_map>
#include <vector>

// pulsar-client's wheels for Linux are made with libstdc++ and its present strings. The functions are
// found by name, so nothing else would notice another standard library here.
#if !defined(__GLIBCXX__) || !_GLIBCXX_USE_CXX11_ABI || defined(_GLIBCXX_DEBUG)
#error "this module needs libstdc++ with the ABI of C++11"
#endif
static_assert(sizeof(void*) == 8, "this module is for 64-bit platforms");

// As the public headers declare them; `impl_` is their only member.
namespace pulsar {
class MessageImpl;
class MessageIdImpl;
struct Message {
    std::shared_ptr<MessageImpl> impl_;
};
struct MessageBuilder {
    std::shared_ptr<MessageImpl> impl_;
};
struct MessageId;  // only by reference
struct Producer {};  // only by pointer
struct Consumer {};  // only by pointer
enum Result : std::int8_t { ResultOk = 0, ResultUnknownError = 1 };
}  // namespace pulsar

namespace {

using pulsar::Consumer;
using pulsar::Message;
using pulsar::MessageBuilder;
using pulsar::MessageId;
using pulsar::Producer;
using pulsar::Result;
using pulsar::ResultOk;

using Properties = std::map<std::string, std::string>;
using SendCallback = std::function<void(Result, const MessageId&)>;
using ResultCallback = std::function<void(Result)>;

// The library's functions. A member function is called as a function of its object, which is the
// same on all platforms that this module is built for.
struct Library {
    const Properties& (*properties)(const Message*);
    const void* (*data)(const Message*);
    std::size_t (*length)(const Message*);
    const std::string& (*key)(const Message*);
    const std::string& (*ordering_key)(const Message*);
    bool (*has_null_value)(const Message*);
    std::uint64_t (*event_time)(const Message*);
    const std::string& (*topic)(const Message*);
    const std::string& (*producer)(const Message*);
    const MessageId& (*id)(const Message*);
    std::ostream& (*print_id)(std::ostream&, const MessageId&);
    void (*new_builder)(MessageBuilder*);
    MessageBuilder& (*set_content)(MessageBuilder*, const void*, std::size_t);
    MessageBuilder& (*set_null_value)(MessageBuilder*);
    MessageBuilder& (*set_properties)(MessageBuilder*, const Properties&);
    MessageBuilder& (*set_key)(MessageBuilder*, const std::string&);
    MessageBuilder& (*set_ordering_key)(MessageBuilder*, const std::string&);
    MessageBuilder& (*set_event_time)(MessageBuilder*, std::uint64_t);
    MessageBuilder& (*set_deliver_at)(MessageBuilder*, std::uint64_t);
    Message (*build)(MessageBuilder*);
    void (*send)(Producer*, const Message&, const SendCallback&);
    void (*acknowledge)(Consumer*, const Message&, const ResultCallback&);
} library;

// For the conversions of pybind11: the name of its method, its name for this platform, and the
// types as capsules.
PyObject* conduit_name;
PyObject* platform_id;
PyObject* pointer_kind;
PyObject* message_type;
PyObject* producer_type;
PyObject* consumer_type;

constexpr const char* MESSAGE = "N6pulsar7MessageE";
constexpr const char* PRODUCER = "N6pulsar8ProducerE";
constexpr const char* CONSUMER = "N6pulsar8ConsumerE";

// Returns the C++ object behind *object*, which stays owned by *object*.
void* pointer_of(PyObject* object, PyObject* type, const char* type_name) {
    PyObject* capsule = PyObject_CallMethodObjArgs(object, conduit_name, platform_id, type,
                                                   pointer_kind, nullptr);
    if (capsule == nullptr) return nullptr;
    void* pointer = nullptr;
    if (capsule == Py_None)
        PyErr_SetString(PyExc_TypeError, "not the object of pulsar-client that is needed here");
    else
        pointer = PyCapsule_GetPointer(capsule, type_name);
    Py_DECREF(capsule);
    return pointer;
}

// -- the state that callbacks share with Python --------------------------------------------------

// One letter in flight. The original is held here; *token* and *owner* are Python's references.
struct Job {
    Message original;
    Consumer* consumer = nullptr;
    PyObject* token = nullptr;
    PyObject* owner = nullptr;
    bool is_out = false;    // the letter is published, and the acknowledgement was requested
    bool given_up = false;  // nobody waits for the outcome any more
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
    const pid_t pid = getpid();

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
            if (result != ResultOk) return state->end(id, result);
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

// Returns a letter with the payload, key, ordering key and event time of *original*.
Message build(const Message& original, const Properties& properties, std::uint64_t deliver_at) {
    // The library constructs the builder; its destructor is that of its only member.
    alignas(MessageBuilder) unsigned char place[sizeof(MessageBuilder)];
    auto* builder = reinterpret_cast<MessageBuilder*>(place);
    library.new_builder(builder);
    struct Destroyed {
        MessageBuilder* builder;
        ~Destroyed() { builder->~MessageBuilder(); }
    } destroyed{builder};
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

// Tells whether *text* is UTF-8 as Python reads it. Messages with other properties are handled by
// Python, which cannot read them.
bool is_utf8(const std::string& text) {
    auto* byte = reinterpret_cast<const unsigned char*>(text.data());
    auto* end = byte + text.size();
    while (byte < end) {
        if (*byte < 0x80) {
            ++byte;
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

    // Changes *properties*, which are those of a message, to those of its letter.
    // *level* is -1 if none is given, and *delay* is negative if none is given. On success *delay*
    // is the letter's delay in seconds.
    bool apply(Properties& properties, const std::string& topic, const std::string& id,
               const std::string& producer, long level, double& delay) const {
        std::int64_t count = 1;
        auto counted = properties.find("RECONSUMETIMES");
        if (counted != properties.end()) {
            const std::string& text = counted->second;
            if (text.empty() || text.size() > 9) return false;
            std::int64_t number = 0;
            for (char digit : text) {
                if (digit < '0' || digit > '9') return false;
                number = number * 10 + (digit - '0');
            }
            count = number + 1;
        }
        if (count > most) return false;
        long written = -1;
        if (delay < 0) {
            written = std::min<std::int64_t>(level < 0 ? count : level, delays.size());
            delay = written > 0 ? delays[written - 1] : 0;
        }

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
        // Only letters with an identity: see `pulsar_retry.letters.identity`.
        if (topic.rfind("non-persistent:", 0) == 0) return false;
        const std::string& identity = properties["ORIGIN_MESSAGE_ID"];
        if (identity != id && (identity.empty() || producer.rfind("pulsar-retry-", 0) != 0))
            return false;

        properties.emplace("REAL_SUBSCRIPTION", subscription);
        properties.emplace("RETRY_TOPIC", retry_topic);
        properties["RECONSUMETIMES"] = std::to_string(count);
        properties["DELAY_TIME"] = std::to_string(std::llrint(delay * 1000));
        if (writes_level) properties["DELAY"] = std::to_string(written);

        std::size_t size = 0;
        for (auto& [name, value] : properties) {
            if (!is_utf8(name) || !is_utf8(value)) return false;
            size += name.size() + value.size() + 16;
        }
        return size <= MOST_BYTES;
    }

    static constexpr std::size_t MOST_BYTES = 64 << 10;
};

// Returns the text of an id as letters have it: ledger:entry:partition, and :batch in a batch.
std::string id_text(const Message& message) {
    std::ostringstream stream;
    library.print_id(stream, library.id(&message));
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
    RetryRule* rule;
};

PyTypeObject* outcomes_type;
PyTypeObject* sender_type;
PyTypeObject* rule_type;

template <class Method>
PyObject* guarded(Method method) {
    try {
        return method();
    } catch (const std::bad_alloc&) {
        return PyErr_NoMemory();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
        return nullptr;
    }
}

// Returns the state, or null with an exception set in a forked child.
State* state_of(Outcomes* self) {
    State* state = self->state->get();
    if (state->pid == getpid()) return state;
    PyErr_SetString(PyExc_RuntimeError, "this object belongs to the process that was forked");
    return nullptr;
}

PyObject* outcomes_new(PyTypeObject* type, PyObject*, PyObject*) {
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    auto* self = reinterpret_cast<Outcomes*>(allocate(type, 0));
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
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(sender_type, Py_tp_alloc));
    auto* sender = reinterpret_cast<Sender*>(allocate(sender_type, 0));
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
            if (found != state->flying.end() && !found->second.is_out) {
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
                      const Properties& properties, std::uint64_t deliver_at, PyObject* token) {
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

// send(message, consumer, properties, deliver_at_ms, token) -> id
PyObject* sender_send(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
    auto* self = reinterpret_cast<Sender*>(object);
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "send takes five arguments");
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
        return send_letter(self, state, *original, arguments[1], properties, deliver_at,
                           arguments[4]);
    });
}

// retry(rule, message, consumer, delay or -1, level or -1, longest_delay, now, token) -> id, or None
PyObject* sender_retry(PyObject* object, PyObject* const* arguments, Py_ssize_t count) {
    auto* self = reinterpret_cast<Sender*>(object);
    if (count != 8) {
        PyErr_SetString(PyExc_TypeError, "retry takes eight arguments");
        return nullptr;
    }
    if (Py_TYPE(arguments[0]) != rule_type) {
        PyErr_SetString(PyExc_TypeError, "the first argument must be a Rule");
        return nullptr;
    }
    auto* rule = reinterpret_cast<Rule*>(arguments[0])->rule;
    State* state = state_of(self->outcomes);
    if (state == nullptr) return nullptr;
    auto* original = static_cast<Message*>(pointer_of(arguments[1], message_type, MESSAGE));
    if (original == nullptr) return nullptr;
    double delay = PyFloat_AsDouble(arguments[3]);
    long level = PyLong_AsLong(arguments[4]);
    double longest = PyFloat_AsDouble(arguments[5]);
    double now = PyFloat_AsDouble(arguments[6]);
    if (PyErr_Occurred()) return nullptr;
    return guarded([=]() mutable -> PyObject* {
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

// -- Rule ------------------------------------------------------------------------------------------

// Rule(retry_topic, subscription, most, delays, writes_level)
PyObject* rule_new(PyTypeObject* type, PyObject* arguments, PyObject*) {
    const char *retry_topic, *subscription;
    long long most;
    PyObject* delays;
    int writes_level;
    if (!PyArg_ParseTuple(arguments, "ssLOp", &retry_topic, &subscription, &most, &delays,
                          &writes_level))
        return nullptr;
    return guarded([=]() -> PyObject* {
        auto rule = std::make_unique<RetryRule>();
        rule->retry_topic = retry_topic;
        rule->subscription = subscription;
        rule->most = most;
        rule->writes_level = writes_level != 0;
        Py_ssize_t count = PySequence_Size(delays);
        if (count < 0) return nullptr;
        for (Py_ssize_t each = 0; each < count; each++) {
            PyObject* item = PySequence_GetItem(delays, each);
            if (item == nullptr) return nullptr;
            rule->delays.push_back(PyFloat_AsDouble(item));
            Py_DECREF(item);
            if (PyErr_Occurred()) return nullptr;
        }
        auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
        auto* self = reinterpret_cast<Rule*>(allocate(type, 0));
        if (self == nullptr) return nullptr;
        self->rule = rule.release();
        return reinterpret_cast<PyObject*>(self);
    });
}

void rule_dealloc(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    delete reinterpret_cast<Rule*>(object)->rule;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

// topic(name, real_topic): messages from *name* were first published to *real_topic*
PyObject* rule_topic(PyObject* object, PyObject* arguments) {
    const char *name, *real_topic;
    if (!PyArg_ParseTuple(arguments, "ss", &name, &real_topic)) return nullptr;
    return guarded([=]() -> PyObject* {
        reinterpret_cast<Rule*>(object)->rule->real_topics[name] = real_topic;
        Py_RETURN_NONE;
    });
}

// retried(properties, topic, id, producer, delay, level) -> (properties, delay), or None; for a test
PyObject* rule_retried(PyObject* object, PyObject* arguments) {
    auto* rule = reinterpret_cast<Rule*>(object)->rule;
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
        return Py_BuildValue("(Nd)", result, delay);
    });
}

// -- the module's functions ------------------------------------------------------------------------

PyObject* text_or_bytes(const std::string& text) {
    return PyBytes_FromStringAndSize(text.data(), Py_ssize_t(text.size()));
}

// What the library says of a message, for the test of `setup`.
PyObject* described(const Message& message) {
    PyObject* properties = PyDict_New();
    for (auto& [name, value] : library.properties(&message)) {
        PyObject* bytes = text_or_bytes(value);
        if (properties == nullptr || bytes == nullptr ||
            PyDict_SetItemString(properties, name.c_str(), bytes) != 0) {
            Py_XDECREF(bytes);
            Py_XDECREF(properties);
            return nullptr;
        }
        Py_DECREF(bytes);
    }
    return Py_BuildValue(
        "(NNNNOK)", properties,
        PyBytes_FromStringAndSize(static_cast<const char*>(library.data(&message)),
                                  Py_ssize_t(library.length(&message))),
        text_or_bytes(library.key(&message)), text_or_bytes(library.ordering_key(&message)),
        library.has_null_value(&message) ? Py_True : Py_False,
        static_cast<unsigned long long>(library.event_time(&message)));
}

// copied(message, properties) -> what a letter made from *message* has
PyObject* copied(PyObject*, PyObject* arguments) {
    PyObject *object, *dict;
    if (!PyArg_ParseTuple(arguments, "OO", &object, &dict)) return nullptr;
    auto* original = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (original == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        Properties properties;
        if (!read_properties(dict, properties)) return nullptr;
        return described(build(*original, properties, 1));
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
        return Py_BuildValue("(NNN)", text_or_bytes(library.topic(message)),
                             text_or_bytes(id_text(*message)),
                             text_or_bytes(library.producer(message)));
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

#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define MAP_OF_STRINGS                                                          \
    "St3mapINSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEES7_St4lessIS7_" \
    "ESaISt4pairIKS7_S7_EEE"
#define OF_MESSAGE "_ZNK6pulsar7Message"
#define OF_BUILDER "_ZN6pulsar14MessageBuilder"

bool found_all(void* handle) {
    const struct {
        const char* name;
        void* place;
    } functions[] = {
        {OF_MESSAGE "13getPropertiesB5cxx11Ev", &library.properties},
        {OF_MESSAGE "7getDataEv", &library.data},
        {OF_MESSAGE "9getLengthEv", &library.length},
        {OF_MESSAGE "15getPartitionKeyB5cxx11Ev", &library.key},
        {OF_MESSAGE "14getOrderingKeyB5cxx11Ev", &library.ordering_key},
        {OF_MESSAGE "12hasNullValueEv", &library.has_null_value},
        {OF_MESSAGE "17getEventTimestampEv", &library.event_time},
        {OF_MESSAGE "12getTopicNameB5cxx11Ev", &library.topic},
        {OF_MESSAGE "15getProducerNameB5cxx11Ev", &library.producer},
        {OF_MESSAGE "12getMessageIdEv", &library.id},
        {"_ZN6pulsarlsERSoRKNS_9MessageIdE", &library.print_id},
        {OF_BUILDER "C1Ev", &library.new_builder},
        {OF_BUILDER "10setContentEPKvm", &library.set_content},
        {OF_BUILDER "12setNullValueEv", &library.set_null_value},
        {OF_BUILDER "13setPropertiesERK" MAP_OF_STRINGS, &library.set_properties},
        {OF_BUILDER "15setPartitionKeyERK" STRING, &library.set_key},
        {OF_BUILDER "14setOrderingKeyERK" STRING, &library.set_ordering_key},
        {OF_BUILDER "17setEventTimestampEm", &library.set_event_time},
        {OF_BUILDER "12setDeliverAtEm", &library.set_deliver_at},
        {OF_BUILDER "5buildEv", &library.build},
        {"_ZN6pulsar8Producer9sendAsyncERKNS_7MessageERKSt8functionIFvNS_6ResultERKNS_9MessageIdEEE",
         &library.send},
        {"_ZN6pulsar8Consumer16acknowledgeAsyncERKNS_7MessageERKSt8functionIFvNS_6ResultEEE",
         &library.acknowledge},
    };
    for (auto& function : functions) {
        void* found = dlsym(handle, function.name);
        if (found == nullptr) {
            PyErr_Format(PyExc_ImportError, "pulsar-client's library has no %s", function.name);
            return false;
        }
        *static_cast<void**>(function.place) = found;
    }
    return true;
}

// setup(path, platform): finds the library that the module at *path* has loaded.
PyObject* setup(PyObject*, PyObject* arguments) {
    const char *path, *platform;
    if (!PyArg_ParseTuple(arguments, "ss", &path, &platform)) return nullptr;
    void* handle = dlopen(path, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr)
        return PyErr_Format(PyExc_ImportError, "pulsar-client's library is not loaded");
    if (!found_all(handle)) return nullptr;
    Py_XDECREF(platform_id);
    platform_id = PyBytes_FromString(platform);
    if (platform_id == nullptr) return nullptr;
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
     "send(message, consumer, properties, deliver_at_ms, token): publish a letter made from "
     "message, and acknowledge message when the letter is published. Return the id of both."},
    {"retry", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(sender_retry)),
     METH_FASTCALL,
     "retry(rule, message, consumer, delay, level, longest_delay, now, token): do what `send` does with "
     "the properties of a usual retry letter; return None, and do nothing, if it is not one."},
    {}};
PyType_Slot sender_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(sender_dealloc)},
                              {Py_tp_methods, sender_methods},
                              {Py_tp_doc, const_cast<char*>("Sends letters with one producer.")},
                              {}};
PyType_Spec sender_spec = {"pulsar_retry.native._handoff.Sender", sizeof(Sender), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, sender_slots};

PyMethodDef rule_methods[] = {
    {"topic", rule_topic, METH_VARARGS, "Say which topic the messages from a topic belong to."},
    {"retried", rule_retried, METH_VARARGS,
     "retried(properties, topic, id, producer, delay, level): return the properties of the letter "
     "and its delay, or None; for a test."},
    {}};
PyType_Slot rule_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(rule_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(rule_dealloc)},
    {Py_tp_methods, rule_methods},
    {Py_tp_doc,
     const_cast<char*>("Rule(retry_topic, subscription, most, delays, writes_level): what the "
                       "usual retry letters of one subscription have.")},
    {}};
PyType_Spec rule_spec = {"pulsar_retry.native._handoff.Rule", sizeof(Rule), 0, Py_TPFLAGS_DEFAULT,
                         rule_slots};

PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "Find pulsar-client's library in the process."},
    {"is_text", is_text, METH_O, "Tell whether bytes are UTF-8, for a test."},
    {"read", read_message, METH_O, "Return topic, id and producer of a message, for a test."},
    {"acknowledge", acknowledge_message, METH_VARARGS,
     "Acknowledge a message, and return the result if it comes at once; for a test."},
    {"copied", copied, METH_VARARGS, "Return what a letter made from a message has, for a test."},
    {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_handoff", nullptr, -1, functions};

PyObject* type_capsule(const std::type_info& type) {
    return PyCapsule_New(const_cast<std::type_info*>(&type), typeid(std::type_info).name(), nullptr);
}

}  // namespace

PyMODINIT_FUNC PyInit__handoff() {
    conduit_name = PyUnicode_InternFromString("_pybind11_conduit_v1_");
    pointer_kind = PyBytes_FromString("raw_pointer_ephemeral");
    message_type = type_capsule(typeid(Message));
    producer_type = type_capsule(typeid(Producer));
    consumer_type = type_capsule(typeid(Consumer));
    outcomes_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&outcomes_spec));
    sender_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&sender_spec));
    rule_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&rule_spec));
    PyObject* module = PyModule_Create(&definition);
    if (PyErr_Occurred() || module == nullptr) return nullptr;
    if (PyModule_AddObjectRef(module, "Outcomes", reinterpret_cast<PyObject*>(outcomes_type)) != 0)
        return nullptr;
    if (PyModule_AddObjectRef(module, "Rule", reinterpret_cast<PyObject*>(rule_type)) != 0)
        return nullptr;
    return module;
}
