// Rows from and to Arrow's buffers, for Spark: many messages with one call.
//
// `Columns` builds messages from Arrow columns and sends them; `Receipts` counts their receipts;
// `Reading` receives messages and appends what they have to columns. This module is not linked with
// pulsar-client's library: see reach.hpp.
//
// Rules that keep it safe:
// - The callbacks never touch Python. What they use stays alive until the last one was called.
// - Nobody uses a `Reading` while another thread receives with it: it is refused.
// - Offsets come from outside, so they are compared with the length of the data.

#include "rows_reading.hpp"
#include "rows_sending.hpp"

namespace {

// -- the module's functions ------------------------------------------------------------------------

bool found_all(const char* path) {
    const Function functions[] = {
        {OF_MESSAGE "20getLongSchemaVersionEv", &library.schema_version},
        {OF_BUILDER "11setPropertyERK" STRING "S8_", &library.set_property},
        {"_ZN6pulsar6Reader8readNextERNS_7MessageEi", &library.read_next},
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

// described(message) -> what a message has, for tests
PyObject* described_message(PyObject*, PyObject* object) {
    auto* message = static_cast<Message*>(pointer_of(object, message_type, MESSAGE));
    if (message == nullptr) return nullptr;
    return guarded([=]() -> PyObject* { return described(library, *message); });
}

PyMethodDef columns_methods[] = {
    {"send", columns_send, METH_VARARGS,
     "send(producer, receipts, topic, rows): build messages of rows and send them."},
    {"described", columns_described, METH_O,
     "described(row): return what the message of a row has, for a test."},
    {}};
PyType_Slot columns_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(columns_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Columns>)},
    {Py_tp_methods, columns_methods},
    {Py_tp_doc, const_cast<char*>("Columns(rows, columns, plan): the buffers of Arrow's columns, and "
                                  "which are properties: ((name, text or column's number), ...).")},
    {}};
PyType_Spec columns_spec = {"pulsar_retry.native._rows.Columns", sizeof(Columns), 0,
                            Py_TPFLAGS_DEFAULT, columns_slots};

PyMethodDef receipts_methods[] = {
    {"take", receipts_take, METH_VARARGS,
     "take(rows, timeout_ms): wait until so many rows have receipts, one was refused, or none has "
     "come for that time. Return how many came, and the topic and result of a refused row."},
    {}};
PyType_Slot receipts_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(receipts_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Receipts>)},
    {Py_tp_methods, receipts_methods},
    {Py_tp_doc, const_cast<char*>("Counts the rows that have receipts.")},
    {}};
PyType_Spec receipts_spec = {"pulsar_retry.native._rows.Receipts", sizeof(Receipts), 0,
                             Py_TPFLAGS_DEFAULT, receipts_slots};

PyMethodDef reading_methods[] = {
    {"read", reading_read, METH_VARARGS,
     "read(reader, timeout_ms, after): receive messages that follow *after* until another one is "
     "held, the block is full, or none comes. Return the result, and the last message taken."},
    {"hold", reading_hold, METH_O, "Hold a message that was received elsewhere."},
    {"held", reading_held, METH_NOARGS,
     "Return position, publish time and id of the message that is held; None without one."},
    {"settle", reading_settle, METH_O, "settle(is_row): take the message that is held, or drop it."},
    {"take", reading_take, METH_NOARGS, "Return the buffers of what was read, and start anew."},
    {"rows", reading_rows, METH_NOARGS,
     "Return how many rows `take` would return, and whether the block is full."},
    {}};
PyType_Slot reading_slots[] = {
    {Py_tp_new, reinterpret_cast<void*>(reading_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(deallocated<Reading>)},
    {Py_tp_methods, reading_methods},
    {Py_tp_doc,
     const_cast<char*>("Reading(number, end, since, until, wanted, rows, bytes): messages of a partition, "
                       "in blocks of at most so many rows and bytes of payload.")},
    {}};
PyType_Spec reading_spec = {"pulsar_retry.native._rows.Reading", sizeof(Reading), 0,
                            Py_TPFLAGS_DEFAULT, reading_slots};

PyMethodDef functions[] = {
    {"setup", setup, METH_VARARGS, "Find pulsar-client's library in the process."},
    {"described", described_message, METH_O, "Return what a message has, for tests."},
    {}};
PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_rows", nullptr, -1, functions};

}  // namespace

PyMODINIT_FUNC PyInit__rows() {
    prepare();
    message_type = type_capsule(typeid(Message));
    producer_type = type_capsule(typeid(Producer));
    reader_type = type_capsule(typeid(Reader));
    columns_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&columns_spec));
    receipts_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&receipts_spec));
    reading_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&reading_spec));
    return created(definition, {{"Columns", columns_type},
                                {"Receipts", receipts_type},
                                {"Reading", reading_type}});
}
