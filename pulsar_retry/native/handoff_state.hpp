// What the parts of the module share: the library's functions, and the letters in flight.

#pragma once

#include <unistd.h>

#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "reach.hpp"

namespace {

using pulsar::Consumer;

using ResultCallback = std::function<void(Result)>;

// The library's functions that this module needs.
struct Library : Common {
    MessageBuilder& (*set_property)(MessageBuilder*, const std::string&, const std::string&);
    void (*acknowledge)(Consumer*, const Message&, const ResultCallback&);
    void (*negative_acknowledge)(Consumer*, const MessageId&);
} library;

PyObject* message_type;
PyObject* producer_type;
PyObject* consumer_type;
PyObject* id_type;

constexpr const char* CONSUMER = "N6pulsar8ConsumerE";
constexpr const char* MESSAGE_ID = "N6pulsar9MessageIdE";

// One letter in flight. The original is held here; *token* and *owner* are Python's references.
struct Job {
    Message original;
    Consumer* consumer = nullptr;
    PyObject* token = nullptr;
    PyObject* owner = nullptr;
    bool is_out = false;  // the letter is published, and the acknowledgement was requested
};

// A letter that was not sent yet. It shares the library's producer, which stays alive for it.
struct Post {
    std::uint64_t id;
    Producer producer;
    MessageBuilder builder;  // has the properties
    std::uint64_t deliver_at;
};

struct Outcome {
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
    std::vector<Post> posts;  // oldest first
    std::condition_variable posted;
    bool has_thread = false;
    bool is_idle = false;  // it waits for the next post, however many letters are in flight
    std::mutex sending;  // held while posts are sent, so that they keep their order
    const pid_t pid = getpid();

    // Whether to send the posts now. While most letters in flight are sent already, it is worth
    // waiting a moment for more: each time that pulsar-client's thread wakes up costs as much as a
    // letter. A letter that is alone is sent at once.
    bool has_burst() const { return !posts.empty() && 2 * posts.size() >= flying.size(); }

    // Moves a job to the outcomes, if it is still in flight. Called with the mutex held.
    void end(std::uint64_t id, Result result) {
        auto found = flying.find(id);
        if (found == flying.end()) return;
        ready.push_back({std::move(found->second), result});
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

}  // namespace
