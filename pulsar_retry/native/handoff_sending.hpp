// Sending letters, and taking the outcomes.

#pragma once

#include <cxxabi.h>

#include <chrono>
#include <thread>

#include "handoff_state.hpp"

namespace {

// Adds the properties of a dict of str; false with an exception set if it is something else.
bool add_properties(MessageBuilder* builder, PyObject* dict) {
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
        library.set_property(builder, {name_text, std::size_t(name_size)},
                             {value_text, std::size_t(value_size)});
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

// Adds the payload, key, ordering key and event time of *original*, and builds the letter.
Message build(MessageBuilder* builder, const Message& original, std::uint64_t deliver_at) {
    if (library.has_null_value(&original))
        library.set_null_value(builder);
    else
        library.set_content(builder, library.data(&original), library.length(&original));
    const std::string& key = library.key(&original);
    if (!key.empty()) library.set_key(builder, key);
    const std::string& ordering_key = library.ordering_key(&original);
    if (!ordering_key.empty()) library.set_ordering_key(builder, ordering_key);
    if (std::uint64_t moment = library.event_time(&original))
        library.set_event_time(builder, moment);
    if (deliver_at != 0) library.set_deliver_at(builder, deliver_at);
    return library.build(builder);
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

PyTypeObject* outcomes_type;
PyTypeObject* sender_type;

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
        for (auto& [job, result] : taken) {
            if (is_complete) {
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

// give_up(id): ends a job whose letter is not published, so that its original is not acknowledged.
// Returns whether it is too late: the letter is published, or its outcome is known.
PyObject* outcomes_give_up(PyObject* object, PyObject* argument) {
    State* state = state_of(reinterpret_cast<Outcomes*>(object));
    if (state == nullptr) return nullptr;
    std::uint64_t id = PyLong_AsUnsignedLongLong(argument);
    if (PyErr_Occurred()) return nullptr;
    Job erased;
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        auto found = state->flying.find(id);
        if (found == state->flying.end() || found->second.is_out) Py_RETURN_TRUE;
        erased = std::move(found->second);
        state->flying.erase(found);
    }
    release(erased);
    Py_RETURN_FALSE;
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

// A hand-off has one or two consumers at a time, and after a long pause new ones.
constexpr std::size_t MOST_CONSUMERS = 4;

// Releases the consumers, of which some may be closed, unless a letter in flight needs one.
void forget_consumers(Outcomes* outcomes) {
    State* state = outcomes->state->get();
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        if (!state->flying.empty()) return;
    }
    std::map<PyObject*, Consumer*> forgotten;
    forgotten.swap(*outcomes->consumers);
    for (auto& [consumer, raw] : forgotten) Py_DECREF(consumer);
}

// Returns the C++ consumer of a Python one, which is kept alive while a letter needs it.
Consumer* consumer_of(Outcomes* outcomes, PyObject* object) {
    auto known = outcomes->consumers->find(object);
    if (known != outcomes->consumers->end()) return known->second;
    if (outcomes->consumers->size() >= MOST_CONSUMERS) forget_consumers(outcomes);
    auto* raw = static_cast<Consumer*>(pointer_of(object, consumer_type, CONSUMER));
    if (raw == nullptr) return nullptr;
    // The conversion may have let another thread do the same.
    if (outcomes->consumers->emplace(object, raw).second) Py_INCREF(object);
    return raw;
}

// Sends the letter of a post, unless it was given up.
void send_post(const SharedState& state, Post& post) {
    Message original;
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        auto found = state->flying.find(post.id);
        if (found == state->flying.end()) return;
        original = found->second.original;
    }
    try {
        Message letter = build(&post.builder, original, post.deliver_at);
        library.send(&post.producer, letter,
                     [state, id = post.id](Result result, const MessageId&) {
                         published(state, id, result);
                     });
    } catch (abi::__forced_unwind&) {
        throw;  // the thread is being ended
    } catch (...) {
        published(state, post.id, pulsar::ResultUnknownError);
    }
}

// Sends all posts. Any thread may call it that does not hold the interpreter's lock.
void send_posts(const SharedState& state) {
    std::lock_guard<std::mutex> turn(state->sending);
    std::vector<Post> posts;
    {
        std::lock_guard<std::mutex> lock(state->mutex);
        posts.swap(state->posts);
    }
    for (auto& post : posts) send_post(state, post);
}

// The sending thread: it sends posts until there has been none for a second.
void keep_sending(SharedState state) {
    std::unique_lock<std::mutex> lock(state->mutex);
    while (true) {
        state->posted.wait_for(lock, std::chrono::microseconds(300),
                               [&state] { return state->has_burst(); });
        if (state->posts.empty()) {
            state->is_idle = true;
            state->posted.wait_for(lock, std::chrono::seconds(1),
                                   [&state] { return !state->posts.empty(); });
            state->is_idle = false;
        }
        if (state->posts.empty()) break;
        lock.unlock();
        send_posts(state);
        lock.lock();
    }
    state->has_thread = false;
}

// Has a letter made from *original*, of which *builder* has the properties, sent by the sending
// thread; returns its id. Sent here, it would cost this thread more than all else that it does for
// the letter, and pulsar-client's thread would wake up for each.
PyObject* post_letter(Sender* self, State* state, const Message& original, PyObject* source,
                      MessageBuilder* builder, std::uint64_t deliver_at, PyObject* token) {
    Consumer* consumer = consumer_of(self->outcomes, source);
    if (consumer == nullptr) return nullptr;
    const SharedState& shared = *self->outcomes->state;
    Job job{original, consumer, token, reinterpret_cast<PyObject*>(self)};
    std::unique_lock<std::mutex> lock(state->mutex);
    PyObject* id = PyLong_FromUnsignedLongLong(++state->last);
    if (id == nullptr) return nullptr;
    // First the post: if there is no memory for the job, the letter is not sent.
    state->posts.push_back({state->last, *self->raw, std::move(*builder), deliver_at});
    state->flying.emplace(state->last, job);
    Py_INCREF(job.token);
    Py_INCREF(job.owner);
    if (!state->has_thread) {
        try {
            std::thread(keep_sending, shared).detach();
            state->has_thread = true;
        } catch (const std::exception&) {  // no thread can be started
            lock.unlock();
            Py_BEGIN_ALLOW_THREADS
            send_posts(shared);
            Py_END_ALLOW_THREADS
        }
    } else if (state->is_idle || state->has_burst()) {
        state->posted.notify_one();
    }
    return id;
}

PyObject* outcomes_send_all(PyObject* object, PyObject*) {
    auto* self = reinterpret_cast<Outcomes*>(object);
    if (state_of(self) == nullptr) return nullptr;
    return guarded([self]() -> PyObject* {
        Py_BEGIN_ALLOW_THREADS
        send_posts(*self->state);
        Py_END_ALLOW_THREADS
        Py_RETURN_NONE;
    });
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
        NewBuilder builder(library);
        if (!add_properties(builder.get(), arguments[2])) return nullptr;
        std::uint64_t deliver_at = PyLong_AsUnsignedLongLong(arguments[3]);
        if (PyErr_Occurred()) return nullptr;
        return post_letter(self, state, *original, arguments[1], builder.get(), deliver_at,
                           arguments[4]);
    });
}

}  // namespace
