// References, names and errors of CPython, and what of bitstep is kept at hand.

#pragma once

#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <utility>

namespace bitstep {

// What is Python's, by the names under which `native` hands it over: the objects of a recorder,
// their lists and dicts, the kinds of operations (schemas.Kind), functions for what is not known
// yet.
#define HELD(use)                                                                               \
  use(mode) use(hooks) use(scope) use(pending) use(regions) use(rows) use(columns) use(cells)   \
      use(digests) use(seen) use(last) use(writers) use(blank) use(plans) use(texts) use(slots) \
          use(plain) use(view) use(copy) use(number) use(silent) use(by_text) use(plain_value)  \
              use(digest_of_text) use(runs_of) use(slot_of)

// A plan's fields, and an argument's: schemas.Plan, schemas.Argument.
enum { kName, kKind, kReads, kWrites, kOthers, kNews, kResults, kWhen, kBeta, kDraws, kCollective };
enum { kAt, kArgument, kMany, kSlot };

class Ref {  // A reference that is owned.
 public:
  explicit Ref(PyObject* object = nullptr) : object_(object) {}
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Ref() { Py_XDECREF(object_); }
  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_;
};

// Names of attributes and methods, interned once.
#define NAMES(use)                                                                                 \
  use(first) use(sees_all) use(read) use(write) use(bits) use(asleep) use(active) use(inside)      \
      use(_inside) use(waiting) use(open) use(objects) use(thread) use(count) use(head) use(table) \
          use(node_table) use(node) use(used) use(call) use(failed) use(text) use(args)            \
              use(_by_python) use(_results) use(_raised) use(_native) use(names_of_addresses)      \
                  use(float64)
#define DECLARE(name) PyObject* name;
inline struct {
  NAMES(DECLARE)
  PyObject *out, *out_list;
} words;

// 1 or 0; -1 with an error.
inline int is_true(PyObject* object, PyObject* name) {
  const Ref found(PyObject_GetAttr(object, name));
  return found ? PyObject_IsTrue(found.get()) : -1;
}

}  // namespace bitstep
