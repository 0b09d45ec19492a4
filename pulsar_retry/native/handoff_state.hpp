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

}  // namespace
