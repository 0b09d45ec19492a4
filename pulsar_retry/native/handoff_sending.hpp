// Sending letters, on the thread of the caller or on one of their own, and taking the outcomes.

#pragma once

#include <cxxabi.h>

#include <chrono>
#include <system_error>
#include <thread>

#include "handoff_letters.hpp"

namespace {

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

// When a letter is due that waits *delay* from *now*, in milliseconds since 1970; 0: at once.
std::uint64_t due_at(double now, double delay) {
    return delay > 0 ? std::llrint((now + delay) * 1000) : 0;
}

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
        Draft draft(*original);
        if (!rule->apply(draft, level, delay) || delay > longest) Py_RETURN_NONE;
        return send_letter(self, state, *original, arguments[2], draft.properties,
                           due_at(now, delay), arguments[7]);
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
        Draft draft(*original);
        double wait = std::max(delay, least);
        if (wait > longest || !rule->fail(draft, failure, count, delay, level)) Py_RETURN_NONE;
        return hand_on(self, state, *original, arguments[2], draft.properties, due_at(now, wait),
                       arguments[11], arguments[12]);
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
        Draft draft(*original);
        if (!rule->bury(draft, failure, count)) Py_RETURN_NONE;
        return hand_on(self, state, *original, arguments[2], draft.properties, 0, arguments[6],
                       arguments[7]);
    });
}

}  // namespace
