// How the extension modules reach pulsar-client's library, which they are not linked with.
//
// A module finds the library's public functions at run time, in the library that Python has loaded
// already, and it gets the C++ object behind a Python object from pybind11's interface between
// modules. Of the library's classes only what their public headers declare is known here: the sizes
// of a few small classes.

#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <new>
#include <ostream>
#include <sstream>
#include <string>
#include <typeinfo>
#include <utility>

// pulsar-client's wheels for Linux are made with libstdc++ and its present strings. The functions are
// found by name, so nothing else would notice another standard library here.
#if !defined(__GLIBCXX__) || !_GLIBCXX_USE_CXX11_ABI || defined(_GLIBCXX_DEBUG)
#error "this module needs libstdc++ with the ABI of C++11"
#endif
static_assert(sizeof(void*) == 8, "this module is for 64-bit platforms");

// As the public headers declare them; `impl_` is their only member.
namespace pulsar {
class MessageImpl;
class ProducerImplBase;
struct Message {
    std::shared_ptr<MessageImpl> impl_;
};
struct MessageBuilder {
    std::shared_ptr<MessageImpl> impl_;
};
struct MessageId {};  // only by reference
struct Producer {
    std::shared_ptr<ProducerImplBase> impl_;
};
struct Consumer {};  // only by pointer
class ReaderImpl;
struct Reader {
    std::shared_ptr<ReaderImpl> impl_;
};
enum Result : std::int8_t { ResultOk = 0, ResultUnknownError = 1 };
}  // namespace pulsar

namespace {

using pulsar::Message;
using pulsar::MessageBuilder;
using pulsar::MessageId;
using pulsar::Producer;
using pulsar::Result;
using pulsar::ResultOk;

using Properties = std::map<std::string, std::string>;
using SendCallback = std::function<void(Result, const MessageId&)>;

// The names that the library's functions have for the linker.
#define STRING "NSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
#define OF_MESSAGE "_ZNK6pulsar7Message"
#define OF_BUILDER "_ZN6pulsar14MessageBuilder"

// A function of the library, and where its address goes. A member function is called as a function
// of its object, which is the same on all platforms that these modules are built for.
struct Function {
    const char* name;
    void* place;
};

// Finds functions in the library that the module at *path* has loaded; false with an exception set
// if one is missing.
template <std::size_t count>
bool find_all(const char* path, const Function (&functions)[count]) {
    void* handle = dlopen(path, RTLD_NOLOAD | RTLD_LAZY);
    if (handle == nullptr) {
        PyErr_Format(PyExc_ImportError, "pulsar-client's library is not loaded");
        return false;
    }
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

// The functions that both modules use.
struct Common {
    const Properties& (*properties)(const Message*);
    const void* (*data)(const Message*);
    std::size_t (*length)(const Message*);
    const std::string& (*key)(const Message*);
    const std::string& (*ordering_key)(const Message*);
    bool (*has_null_value)(const Message*);
    std::uint64_t (*event_time)(const Message*);
    std::uint64_t (*publish_time)(const Message*);
    const MessageId& (*id)(const Message*);
    std::ostream& (*print_id)(std::ostream&, const MessageId&);
    std::int64_t (*ledger)(const MessageId*);
    std::int64_t (*entry)(const MessageId*);
    std::int32_t (*batch)(const MessageId*);
    void (*new_builder)(MessageBuilder*);
    MessageBuilder& (*set_content)(MessageBuilder*, const void*, std::size_t);
    MessageBuilder& (*set_null_value)(MessageBuilder*);
    MessageBuilder& (*set_key)(MessageBuilder*, const std::string&);
    MessageBuilder& (*set_ordering_key)(MessageBuilder*, const std::string&);
    MessageBuilder& (*set_event_time)(MessageBuilder*, std::uint64_t);
    MessageBuilder& (*set_deliver_at)(MessageBuilder*, std::uint64_t);
    Message (*build)(MessageBuilder*);
    void (*send)(Producer*, const Message&, const SendCallback&);
};

bool find_common(const char* path, Common& library) {
    const Function functions[] = {
        {OF_MESSAGE "13getPropertiesB5cxx11Ev", &library.properties},
        {OF_MESSAGE "7getDataEv", &library.data},
        {OF_MESSAGE "9getLengthEv", &library.length},
        {OF_MESSAGE "15getPartitionKeyB5cxx11Ev", &library.key},
        {OF_MESSAGE "14getOrderingKeyB5cxx11Ev", &library.ordering_key},
        {OF_MESSAGE "12hasNullValueEv", &library.has_null_value},
        {OF_MESSAGE "17getEventTimestampEv", &library.event_time},
        {OF_MESSAGE "19getPublishTimestampEv", &library.publish_time},
        {OF_MESSAGE "12getMessageIdEv", &library.id},
        {"_ZN6pulsarlsERSoRKNS_9MessageIdE", &library.print_id},
        {"_ZNK6pulsar9MessageId8ledgerIdEv", &library.ledger},
        {"_ZNK6pulsar9MessageId7entryIdEv", &library.entry},
        {"_ZNK6pulsar9MessageId10batchIndexEv", &library.batch},
        {OF_BUILDER "C1Ev", &library.new_builder},
        {OF_BUILDER "10setContentEPKvm", &library.set_content},
        {OF_BUILDER "12setNullValueEv", &library.set_null_value},
        {OF_BUILDER "15setPartitionKeyERK" STRING, &library.set_key},
        {OF_BUILDER "14setOrderingKeyERK" STRING, &library.set_ordering_key},
        {OF_BUILDER "17setEventTimestampEm", &library.set_event_time},
        {OF_BUILDER "12setDeliverAtEm", &library.set_deliver_at},
        {OF_BUILDER "5buildEv", &library.build},
        {"_ZN6pulsar8Producer9sendAsyncERKNS_7MessageERKSt8functionIFvNS_6ResultERKNS_9MessageIdEEE",
         &library.send},
    };
    return find_all(path, functions);
}

// A builder of messages. The library constructs it; its destructor is that of its only member.
class NewBuilder {
    alignas(MessageBuilder) unsigned char place[sizeof(MessageBuilder)];

public:
    explicit NewBuilder(const Common& library) { library.new_builder(get()); }
    NewBuilder(const NewBuilder&) = delete;
    NewBuilder& operator=(const NewBuilder&) = delete;
    ~NewBuilder() { get()->~MessageBuilder(); }
    MessageBuilder* get() { return reinterpret_cast<MessageBuilder*>(place); }
};

// For the conversions of pybind11: the name of its method, its name for this platform, and the kind
// of a pointer. `prepare` makes the first and the last, and a module's `setup` the platform's.
PyObject* conduit_name;
PyObject* platform_id;
PyObject* pointer_kind;

void prepare() {
    conduit_name = PyUnicode_InternFromString("_pybind11_conduit_v1_");
    pointer_kind = PyBytes_FromString("raw_pointer_ephemeral");
}

bool set_platform(const char* platform) {
    Py_XDECREF(platform_id);
    platform_id = PyBytes_FromString(platform);
    return platform_id != nullptr;
}

// Returns a new module with these types; null with an exception set if it, or one of them, failed.
PyObject* created(PyModuleDef& definition,
                  std::initializer_list<std::pair<const char*, PyTypeObject*>> types) {
    PyObject* module = PyModule_Create(&definition);
    if (PyErr_Occurred() || module == nullptr) return nullptr;
    for (auto& [name, type] : types)
        if (PyModule_AddObjectRef(module, name, reinterpret_cast<PyObject*>(type)) != 0)
            return nullptr;
    return module;
}

PyObject* type_capsule(const std::type_info& type) {
    return PyCapsule_New(const_cast<std::type_info*>(&type), typeid(std::type_info).name(), nullptr);
}

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

constexpr const char* MESSAGE = "N6pulsar7MessageE";
constexpr const char* PRODUCER = "N6pulsar8ProducerE";

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

// Returns a new object of a type, filled with zeros.
template <class Object>
Object* allocated(PyTypeObject* type) {
    auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
    return reinterpret_cast<Object*>(allocate(type, 0));
}

// Destroys an object that owns its *inner*.
template <class Object>
void deallocated(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    delete reinterpret_cast<Object*>(object)->inner;
    reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyObject* bytes_of(const void* data, std::size_t size) {
    return PyBytes_FromStringAndSize(static_cast<const char*>(data), Py_ssize_t(size));
}

PyObject* bytes_of(const std::string& text) { return bytes_of(text.data(), text.size()); }

// Returns what the library says of a message, for tests.
PyObject* described(const Common& library, const Message& message) {
    PyObject* properties = PyDict_New();
    for (auto& [name, value] : library.properties(&message)) {
        PyObject* bytes = bytes_of(value);
        if (properties == nullptr || bytes == nullptr ||
            PyDict_SetItemString(properties, name.c_str(), bytes) != 0) {
            Py_XDECREF(bytes);
            Py_XDECREF(properties);
            return nullptr;
        }
        Py_DECREF(bytes);
    }
    return Py_BuildValue("(NNNNOK)", properties,
                         bytes_of(library.data(&message), library.length(&message)),
                         bytes_of(library.key(&message)), bytes_of(library.ordering_key(&message)),
                         library.has_null_value(&message) ? Py_True : Py_False,
                         static_cast<unsigned long long>(library.event_time(&message)));
}

}  // namespace
