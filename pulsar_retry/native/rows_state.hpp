// What the parts of the module share: the library's functions, and how it runs without Python.

#pragma once

#include <cxxabi.h>

#include <chrono>

#include "reach.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using pulsar::Reader;

// The library's functions that this module needs.
struct Library : Common {
    std::int64_t (*schema_version)(const Message*);
    MessageBuilder& (*set_property)(MessageBuilder*, const std::string&, const std::string&);
    Result (*read_next)(Reader*, Message&, int);
} library;

PyObject* message_type;
PyObject* producer_type;
PyObject* reader_type;
PyTypeObject* columns_type;
PyTypeObject* receipts_type;
PyTypeObject* reading_type;

constexpr const char* READER = "N6pulsar6ReaderE";

// Makes *object* busy as long as this exists, while the interpreter's lock may be released.
struct Busy {
    bool& flag;
    const bool mine;
    explicit Busy(bool& flag) : flag(flag), mine(!flag) {
        if (mine)
            flag = true;
        else
            PyErr_SetString(PyExc_RuntimeError, "another thread uses this object");
    }
    ~Busy() {
        if (mine) flag = false;
    }
};

// Runs *work* without the interpreter's lock; false with an exception set if it has thrown one.
template <class Work>
bool without_python(Work work) {
    std::string problem;
    Py_BEGIN_ALLOW_THREADS
    try {
        work();
    } catch (abi::__forced_unwind&) {
        throw;  // the thread is being ended
    } catch (const std::exception& error) {
        problem = error.what();
        if (problem.empty()) problem = "an error without a text";
    } catch (...) {
        problem = "pulsar-client's library has raised an exception";
    }
    Py_END_ALLOW_THREADS
    if (problem.empty()) return true;
    PyErr_SetString(PyExc_RuntimeError, problem.c_str());
    return false;
}

// Reads a str; false with an exception set if it is something else.
bool read_text(PyObject* object, std::string& text) {
    Py_ssize_t size;
    const char* data = PyUnicode_AsUTF8AndSize(object, &size);
    if (data != nullptr) text.assign(data, size);
    return data != nullptr;
}

}  // namespace
