// The hand-off of letters without the interpreter.
//
// A hand-off publishes a letter, waits for its receipt, and then acknowledges the original message.
// pulsar-client calls a callback on one of its own threads for each receipt and for each
// acknowledgement. If those callbacks are Python, the interpreter's lock changes hands twice for
// each letter, and that costs more than the letter. Here the callbacks are C++: they only put the
// outcome into a list, and Python takes many outcomes at a time. Letters are sent by a thread of this
// module, many at a time too.
//
// This module is not linked with pulsar-client's library: see reach.hpp.
//
// Rules that keep it safe:
// - The callbacks and the sending thread never touch Python: no reference counts, no interpreter's
//   lock.
// - No thread waits for the interpreter's lock while it holds `State::mutex`.
// - What they need is owned by the job or the post; Python's objects are released when Python takes the
//   outcome, so not on pulsar-client's threads.
// - A forked child must not use what its parent made: the library's threads do not exist there.

#include "handoff_sending.hpp"

namespace {

// -- the module's functions ------------------------------------------------------------------------

// copied(message, properties) -> what a letter made from *message* has
PyObject* copied(PyObject*, PyObject* arguments) {
    PyObject *object, *dict;
    if (!PyArg_ParseTuple(arguments, "OO", &object, &dict)) return nullptr;
    auto* original = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (original == nullptr) return nullptr;
    return guarded([=]() -> PyObject* {
        NewBuilder builder(library);
        if (!add_properties(builder.get(), dict)) return nullptr;
        return described(library, build(builder.get(), *original, 1));
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

// properties(message) -> its properties, where what is not UTF-8 is escaped: \xff
PyObject* message_properties(PyObject*, PyObject* object) {
    auto* message = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    return guarded([=]() -> PyObject* { return dict_of(library.properties(message)); });
}

bool found_all(const char* path) {
    const Function functions[] = {
        {OF_BUILDER "11setPropertyERK" STRING "S8_", &library.set_property},
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
    {"send_all", outcomes_send_all, METH_NOARGS, "Return when pulsar-client has all letters."},
    {"wake", outcomes_wake, METH_NOARGS, "Have a waiting `take` return at once."},
    {"give_up", outcomes_give_up, METH_O,
     "Expect no outcome for an id, and do not acknowledge its original, unless its letter is "
     "published; return whether it is, or the outcome is known."},
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
     "send(message, consumer, properties, deliver_at_ms, token): have a letter published that is made "
     "from message, and message acknowledged when the letter is published. Return the id of both."},
    {}};
PyType_Slot sender_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(sender_dealloc)},
                              {Py_tp_methods, sender_methods},
                              {Py_tp_doc, const_cast<char*>("Sends letters with one producer.")},
                              {}};
PyType_Spec sender_spec = {"pulsar_retry.native._handoff.Sender", sizeof(Sender), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, sender_slots};

PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "Find pulsar-client's library in the process."},
    {"nack", nack, METH_VARARGS, "nack(consumer, ids): have messages redelivered."},
    {"properties", message_properties, METH_O,
     "Return the properties of a message; bytes that are not UTF-8 are escaped, as in \\xff."},
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
    return created(definition, {{"Outcomes", outcomes_type}});
}
