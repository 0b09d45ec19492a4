// Kills the process at a step of a hand-off in C++.
//
// A test loads this library in the place of pulsar-client's: `pulsar_retry.native._handoff` finds the
// library's functions by name, so it finds these two here, and all others in pulsar-client's
// library, with which this one is linked. The code of the product is unchanged.

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

namespace pulsar {
enum Result : std::int8_t { ResultOk = 0 };
class Message;
class MessageId;
using SendCallback = std::function<void(Result, const MessageId&)>;
using ResultCallback = std::function<void(Result)>;
struct Producer {
    void sendAsync(const Message&, const SendCallback&);
};
struct Consumer {
    void acknowledgeAsync(const Message&, const ResultCallback&);
};
}  // namespace pulsar

namespace {

using pulsar::Consumer;
using pulsar::Message;
using pulsar::MessageId;
using pulsar::Producer;
using pulsar::Result;
using pulsar::ResultCallback;
using pulsar::SendCallback;

constexpr const char* SEND =
    "_ZN6pulsar8Producer9sendAsyncERKNS_7MessageERKSt8functionIFvNS_6ResultERKNS_9MessageIdEEE";
constexpr const char* ACKNOWLEDGE =
    "_ZN6pulsar8Consumer16acknowledgeAsyncERKNS_7MessageERKSt8functionIFvNS_6ResultEEE";

void (*real_send)(Producer*, const Message&, const SendCallback&);
void (*real_acknowledge)(Consumer*, const Message&, const ResultCallback&);
std::string step;
int at = 0;  // 0: the trap is not armed
unsigned group_sent_seconds = 0;
std::atomic<int> sends, acknowledgements;

void die() { kill(getpid(), SIGKILL); }

}  // namespace

void pulsar::Producer::sendAsync(const Message& message, const SendCallback& callback) {
    const int number = ++sends;
    const bool is_its_turn = at != 0 && number == at;
    if (at != 0 && step == "acknowledgement sent" && number == at + 1) {
        sleep(group_sent_seconds);
        die();
    }
    if (is_its_turn && step == "unsent") die();
    if (is_its_turn && step == "stored")
        real_send(this, message, [](Result, const MessageId&) { die(); });
    else
        real_send(this, message, callback);
    if (is_its_turn && step == "sent") die();
}

void pulsar::Consumer::acknowledgeAsync(const Message& message, const ResultCallback& callback) {
    const bool is_its_turn = at != 0 && ++acknowledgements == at;
    if (is_its_turn && step == "receipt") die();
    real_acknowledge(this, message, callback);
    if (is_its_turn && step == "acknowledged") die();
}

// Finds the real functions in pulsar-client's library at *path*, which is loaded; 0 means success.
extern "C" int find_real(const char* path) {
    void* handle = dlopen(path, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) return 1;
    *reinterpret_cast<void**>(&real_send) = dlsym(handle, SEND);
    *reinterpret_cast<void**>(&real_acknowledge) = dlsym(handle, ACKNOWLEDGE);
    return real_send == nullptr || real_acknowledge == nullptr ? 2 : 0;
}

// Has hand-off number *number* end at *name*; seconds until acknowledgements were sent.
extern "C" void arm(const char* name, int number, unsigned seconds) {
    step = name;
    group_sent_seconds = seconds;
    sends = acknowledgements = 0;
    at = number;
}
