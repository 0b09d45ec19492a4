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

#include "handoff_prints.hpp"
#include "handoff_sending.hpp"

namespace {

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
        Draft draft(topic, id, producer);
        if (!read_properties(dict, draft.properties)) return nullptr;
        if (!rule->apply(draft, level, delay)) Py_RETURN_NONE;
        PyObject* result = dict_of(draft.properties);
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
        Draft draft(topic, id, producer);
        Failure failure;
        if (!read_properties(carried, draft.properties) || !failure.read(added, source))
            return nullptr;
        if (!rule->fail(draft, failure, count, delay, level)) Py_RETURN_NONE;
        return dict_of(draft.properties);
    });
}

// count(message) -> how often it was reconsumed; None: Python reads that
PyObject* rule_count(PyObject* object, PyObject* source) {
    auto* message = static_cast<Message*>(pointer_of(source, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    auto* rule = reinterpret_cast<Rule*>(object)->inner;
    return guarded([=]() -> PyObject* {
        std::int64_t count;
        auto& properties = library.properties(message);
        if (!rule->is_own(properties, library.topic(message))) Py_RETURN_NONE;
        if (!RetryRule::read_count(properties, count)) Py_RETURN_NONE;
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
        Draft draft(topic, id, producer);
        Failure failure;
        if (!read_properties(carried, draft.properties) || !failure.read(added, source))
            return nullptr;
        if (!rule->bury(draft, failure, count)) Py_RETURN_NONE;
        return dict_of(draft.properties);
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

// properties(message) -> its properties, where what is not UTF-8 is escaped: \xff
PyObject* message_properties(PyObject*, PyObject* object) {
    auto* message = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    return guarded([=]() -> PyObject* { return dict_of(library.properties(message)); });
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
    {"properties", message_properties, METH_O,
     "Return the properties of a message; bytes that are not UTF-8 are escaped, as in \\xff."},
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
