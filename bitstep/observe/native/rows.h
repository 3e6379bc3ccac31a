// The row of one tensor: `TensorRows`, `Seen` and `Columns.add`.

#pragma once

#include "tensors.h"

namespace bitstep {

constexpr int64_t kSmall = 8192;  // lists.SMALL
constexpr long kCarried = 1;      // records.Flag.CARRIED

inline const Ref& empty() {
  static const Ref tuple(PyTuple_New(0));
  return tuple;
}

struct Call {  // An operation that runs: `Scope.call`.
  Ref head, occurrence;
};

// Columns.add
inline bool add(Operations* self, const Call& call, PyObject* slot, PyObject* sum, PyObject* dtype,
                PyObject* shape, int64_t version, int64_t writer, long flags) {
  const Ref by(PyLong_FromLongLong(writer)), marks(PyLong_FromLong(flags));
  const Ref number(PyLong_FromLongLong(version));
  if (sum == nullptr || !by || !marks || !number) return false;
  const Ref row(PyTuple_Pack(10, call.head.get(), call.occurrence.get(), slot, dtype, shape,
                             Py_None, number.get(), by.get(), marks.get(), words.bits));
  const Py_ssize_t end = PyList_GET_SIZE(self->cells);
  // All ten or none: half a row would move every row that follows.
  if (!row || PyList_SetSlice(self->cells, end, end, row.get()) < 0) return false;
  if (PyList_Append(self->digests, sum) == 0) return true;
  PyList_SetSlice(self->cells, end, end + 10, nullptr);
  return false;
}

inline bool add(Operations* self, const Call& call, PyObject* slot, PyObject* sum,
                const Bytes& bytes, int64_t writer, long flags) {
  return add(self, call, slot, sum, bytes.layout->dtype, bytes.layout->shape, bytes.version, writer,
             flags);
}

// Seen._keep
inline bool keep(Operations* self, PyObject* address, const Bytes& bytes, int64_t writer,
                 PyObject* sum) {
  if (sum == nullptr) return false;
  const Ref last(Py_BuildValue("(LLOLLO)", bytes.version, bytes.nbytes, bytes.layout->gaps,
                               bytes.base, writer, sum));
  return last && PyDict_SetItem(self->last, address, last.get()) == 0;
}

inline bool is(PyObject* tuple, Py_ssize_t at, int64_t value) {
  return PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, at)) == value;
}

inline bool is_last(PyObject* last, const Bytes& bytes, int64_t writer) {
  return last != nullptr && is(last, 0, bytes.version) && is(last, 1, bytes.nbytes) &&
         PyObject_RichCompareBool(PyTuple_GET_ITEM(last, 2), bytes.layout->gaps, Py_EQ) == 1 &&
         is(last, 3, bytes.base) && is(last, 4, writer);
}

inline Done done(bool well) { return well ? Done::kYes : Done::kError; }

// TensorRows.read and Seen.read. kNo: of a tensor that Python has to look at.
inline Done read(Operations* self, const Call& call, PyObject* slot, PyObject* tensor) {
  Bytes found;
  if (const Done way = bytes_of(self, tensor, &found); way != Done::kYes) return way;
  const Bytes* bytes = &found;
  const Ref base(PyLong_FromLongLong(bytes->base));
  if (!base) return Done::kError;
  PyObject* wrote = PyDict_GetItemWithError(self->writers, base.get());
  const int64_t writer = wrote == nullptr ? -1 : PyLong_AsLongLong(wrote);
  PyObject* blank = PyDict_GetItemWithError(self->blank, base.get());
  const long flags = blank == nullptr || bytes->is_foreign ? 0 : PyLong_AsLong(blank);
  if (PyErr_Occurred()) return Done::kError;
  const bool may_carry =
      !self->rehash && writer >= 0 && bytes->nbytes > kSmall && !bytes->is_foreign;
  const int carries = may_carry ? is_true(self->seen, words.sees_all) : 0;
  if (carries < 0) return Done::kError;
  if (carries == 0) {
    const Ref sum(sum_of(self, *bytes));
    return done(add(self, call, slot, sum.get(), *bytes, writer, flags));
  }
  const Ref address(PyLong_FromLongLong(bytes->address));
  if (!address) return Done::kError;
  PyObject* last = PyDict_GetItemWithError(self->last, address.get());
  if (is_last(last, *bytes, writer)) {
    const Ref sum(Py_NewRef(PyTuple_GET_ITEM(last, 5)));
    return done(add(self, call, slot, sum.get(), *bytes, writer, flags | kCarried));
  }
  const Ref sum(sum_of(self, *bytes));
  return done(keep(self, address.get(), *bytes, writer, sum.get()) &&
              add(self, call, slot, sum.get(), *bytes, writer, flags));
}

// TensorRows.write and Seen.wrote
inline Done write(Operations* self, const Call& call, PyObject* slot, PyObject* tensor) {
  Bytes found;
  if (const Done way = bytes_of(self, tensor, &found); way != Done::kYes) return way;
  const Bytes* bytes = &found;
  const Ref base(PyLong_FromLongLong(bytes->base)),
      first(PyObject_GetAttr(self->columns, words.first));
  if (!base || !first) return Done::kError;
  if (PyDict_GET_SIZE(self->blank) && PyDict_GetItemWithError(self->blank, base.get()) != nullptr) {
    return Done::kNo;
  }
  const int64_t seq = PyLong_AsLongLong(first.get()) + PyList_GET_SIZE(self->digests);
  const Ref number(PyLong_FromLongLong(seq)), sum(sum_of(self, *bytes));
  if (PyErr_Occurred() || PyDict_SetItem(self->writers, base.get(), number.get()) < 0) {
    return Done::kError;
  }
  if (bytes->nbytes > kSmall) {
    const Ref address(PyLong_FromLongLong(bytes->address));
    if (!address || !keep(self, address.get(), *bytes, seq, sum.get())) return Done::kError;
  }
  return done(add(self, call, slot, sum.get(), *bytes, -1, 0));
}

inline bool by_python(Operations* self, PyObject* method, const Call& call, PyObject* slot,
                      PyObject* tensor) {
  PyObject* given[] = {self->rows, call.head.get(), call.occurrence.get(), slot, tensor};
  return bool(Ref(PyObject_VectorcallMethod(method, given, 5, nullptr)));
}

inline bool tensor_row(Operations* self, const Call& call, PyObject* slot, PyObject* tensor,
                       bool written) {
  Done way = Done::kNo;
  if (THPVariable_CheckExact(tensor)) {
    way = written ? write(self, call, slot, tensor) : read(self, call, slot, tensor);
  }
  if (way != Done::kNo) return way == Done::kYes;
  return by_python(self, written ? words.write : words.read, call, slot, tensor);
}

}  // namespace bitstep
