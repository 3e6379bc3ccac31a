// One operation: what it is given and what it gives back, `Operations._before` and `_results`.

#pragma once

#include "rows.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/node.h>

#include <cstring>

namespace bitstep {

constexpr uint64_t kLastNumber = 1ULL << 62;  // autograd._FIRST_WITHOUT
constexpr long kScalar = 64;                  // records.Flag.SCALAR

inline PyObject* field(PyObject* plan, Py_ssize_t at) { return PyTuple_GET_ITEM(plan, at); }

// schemas.value_of: borrowed; null where none was passed.
inline PyObject* value_of(PyObject* argument, PyObject* args, PyObject* kwargs) {
  const Py_ssize_t at = PyLong_AsSsize_t(field(argument, kAt));
  if (0 <= at && at < PyTuple_GET_SIZE(args)) return PyTuple_GET_ITEM(args, at);
  return kwargs == nullptr ? nullptr : PyDict_GetItemWithError(kwargs, field(argument, kArgument));
}

// tensorrows._slot, remembered: the slot of an element that has a name, or else a number.
inline PyObject* slot_of(Operations* self, PyObject* slot, Py_ssize_t at, PyObject* name) {
  PyObject* known = PyDict_GetItemWithError(self->slots, slot);
  if (known == nullptr) {
    const Ref made(PyErr_Occurred() ? nullptr : PyDict_New());
    if (!made || PyDict_SetItem(self->slots, slot, made.get()) < 0) return nullptr;
    known = made.get();
  }
  const Ref number(PyLong_FromSsize_t(at));
  PyObject* key = name == nullptr ? number.get() : name;
  if (PyObject* found = PyDict_GetItemWithError(known, key)) return Py_NewRef(found);
  PyObject* given[] = {slot, number.get(), name == nullptr ? Py_None : name};
  PyObject* text =
      PyErr_Occurred() ? nullptr : PyObject_Vectorcall(self->slot_of, given, 3, nullptr);
  if (text != nullptr && PyDict_SetItem(known, key, text) < 0) Py_CLEAR(text);
  return text;
}

// TensorRows._list
inline bool list(Operations* self, const Call& call, PyObject* slot, PyObject* tensors,
                 bool written) {
  const Ref items(PySequence_Fast(tensors, "a list of tensors"));
  const Ref names(items ? PyObject_GetAttr(self->hooks, words.names_of_addresses) : nullptr);
  if (!names) return false;
  const bool are_named = slot != words.out_list && PyDict_GET_SIZE(names.get()) != 0;
  for (Py_ssize_t at = 0; at < PySequence_Fast_GET_SIZE(items.get()); ++at) {
    PyObject* tensor = PySequence_Fast_GET_ITEM(items.get(), at);
    if (!THPVariable_Check(tensor)) continue;
    PyObject* name = nullptr;
    if (are_named && THPVariable_CheckExact(tensor) && THPVariable_Unpack(tensor).has_storage()) {
      const void* begins = THPVariable_Unpack(tensor).const_data_ptr();
      const Ref address(PyLong_FromVoidPtr(const_cast<void*>(begins)));
      name = address ? PyDict_GetItemWithError(names.get(), address.get()) : nullptr;
    }
    const Ref element(PyErr_Occurred() ? nullptr : slot_of(self, slot, at, name));
    if (!element || !tensor_row(self, call, element.get(), tensor, written)) return false;
  }
  return true;
}

// TensorRows.arguments
inline bool arguments(Operations* self, const Call& call, PyObject* plan, Py_ssize_t which,
                      PyObject* args, PyObject* kwargs) {
  PyObject* of = field(plan, which);
  const bool written = which == kWrites;
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(of); ++at) {
    PyObject* argument = PyTuple_GET_ITEM(of, at);
    PyObject* value = value_of(argument, args, kwargs);
    if (value == nullptr || value == Py_None) {
      if (PyErr_Occurred()) return false;
    } else if (field(argument, kMany) == Py_True) {
      if (!list(self, call, field(argument, kSlot), value, written)) return false;
    } else if (THPVariable_Check(value)) {
      if (!tensor_row(self, call, field(argument, kSlot), value, written)) return false;
    }
  }
  return true;
}

inline bool is_number(PyObject* value) {
  return PyBool_Check(value) || PyLong_CheckExact(value) || PyFloat_CheckExact(value) ||
         PyComplex_CheckExact(value);
}

// schemas._plain, of what most operations are given.
inline PyObject* plain(Operations* self, PyObject* value) {
  const auto is_known = [self](PyObject* one) {
    return PySet_Contains(self->by_text, reinterpret_cast<PyObject*>(Py_TYPE(one))) == 1;
  };
  if (is_known(value)) return Py_NewRef(value);
  if (PyList_CheckExact(value) || PyTuple_CheckExact(value)) {
    bool are_known = true;
    for (Py_ssize_t at = 0; are_known && at < PySequence_Fast_GET_SIZE(value); ++at) {
      are_known = is_known(PySequence_Fast_GET_ITEM(value, at));
    }
    if (are_known) return PySequence_List(value);
  }
  return PyErr_Occurred() ? nullptr : PyObject_CallOneArg(self->plain_value, value);
}

// schemas.digest_of_others: null without an error where the call passes none.
inline PyObject* digest_of_others(Operations* self, PyObject* plan, PyObject* args,
                                  PyObject* kwargs) {
  Ref passed;
  for (const Py_ssize_t which : {Py_ssize_t(kOthers), Py_ssize_t(kReads)}) {
    PyObject* of = field(plan, which);
    for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(of); ++at) {
      PyObject* argument = PyTuple_GET_ITEM(of, at);
      PyObject* value = value_of(argument, args, kwargs);
      if (value == nullptr || value == Py_None) {
        if (PyErr_Occurred()) return nullptr;
        continue;
      }
      if (which == kReads && !is_number(value)) continue;
      const Ref text(plain(self, value));
      const Ref pair(text ? PyTuple_Pack(2, field(argument, kArgument), text.get()) : nullptr);
      if (!passed) passed = Ref(PyList_New(0));
      if (!pair || !passed || PyList_Append(passed.get(), pair.get()) < 0) return nullptr;
    }
  }
  if (!passed) return nullptr;
  const Ref text(PyObject_Repr(passed.get()));
  if (!text) return nullptr;
  if (PyObject* known = PyDict_GetItemWithError(self->texts, text.get())) return Py_NewRef(known);
  return PyErr_Occurred() ? nullptr : PyObject_CallOneArg(self->digest_of_text, text.get());
}

// Scope.call where it has counted this operation before, in forward or in the node that runs.
inline std::optional<Call> counted(PyObject* scope, PyObject* name) {
  PyObject* which = words.table;
  if (torch::autograd::get_current_graph_task_id() != -1) {
    const auto node = torch::autograd::get_current_node();
    const uint64_t number = node ? node->sequence_nr() : kLastNumber;
    const Ref last(PyObject_GetAttr(scope, words.node));
    if (!last || last.get() == Py_None || number >= kLastNumber ||
        PyLong_AsLongLong(last.get()) != static_cast<int64_t>(number)) {
      return std::nullopt;
    }
    which = words.node_table;
  }
  const Ref table(PyObject_GetAttr(scope, which));
  PyObject* entry = table ? PyDict_GetItemWithError(table.get(), name) : nullptr;
  if (entry == nullptr) return std::nullopt;
  Ref head(PyObject_GetAttr(entry, words.head)), occurrence(PyObject_GetAttr(entry, words.count));
  if (!head || !occurrence) return std::nullopt;
  const int64_t count = PyLong_AsLongLong(occurrence.get());
  if (count == 0) {
    const Ref used(PyObject_GetAttr(scope, words.used));
    if (!used || PyList_Append(used.get(), entry) < 0) return std::nullopt;
  }
  const Ref more(PyLong_FromLongLong(count + 1));
  if (!more || PyObject_SetAttr(entry, words.count, more.get()) < 0) return std::nullopt;
  return Call{std::move(head), std::move(occurrence)};
}

inline std::optional<Call> call_of(PyObject* scope, PyObject* name) {
  auto found = counted(scope, name);
  if (found || PyErr_Occurred()) return found;
  const Ref pair(PyObject_CallMethodOneArg(scope, words.call, name));
  if (!pair) return std::nullopt;
  return Call{Ref(Py_NewRef(PyTuple_GET_ITEM(pair.get(), 0))),
              Ref(Py_NewRef(PyTuple_GET_ITEM(pair.get(), 1)))};
}

// Operations._before
inline std::optional<Call> before(Operations* self, PyObject* plan, PyObject* args,
                                  PyObject* kwargs) {
  auto call = call_of(self->scope, field(plan, kName));
  if (!call) return std::nullopt;
  const bool is_view = field(plan, kKind) == self->view;
  Ref others(digest_of_others(self, plan, args, kwargs));
  if (!others && PyErr_Occurred()) return std::nullopt;
  if (!others && is_view) others = Ref(PyLong_FromLong(0));
  if (others && !add(self, *call, words.args, others.get(), words.text, empty().get(), -1, -1, 0)) {
    return std::nullopt;
  }
  if (!is_view && !arguments(self, *call, plan, kReads, args, kwargs)) return std::nullopt;
  return call;
}

// Operations._scalar, of a float; a number of another kind is left to Python.
inline bool scalar(Operations* self, const Call& call, PyObject* value) {
  const double number = PyFloat_AS_DOUBLE(value);
  uint64_t bits = 0;
  std::memcpy(&bits, &number, sizeof bits);
  const Ref sum(PyLong_FromUnsignedLongLong(bits));
  return add(self, call, words.out, sum.get(), words.float64, empty().get(), -1, -1, kScalar);
}

inline bool several(Operations* self, const Call& call, PyObject* news, PyObject* result) {
  Py_ssize_t number = 0;
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(news); ++at) {
    PyObject* one = PyTuple_GET_ITEM(result, PyLong_AsSsize_t(PyTuple_GET_ITEM(news, at)));
    if (!THPVariable_Check(one)) continue;
    const Ref slot(slot_of(self, words.out_list, number++, nullptr));
    if (!slot || !tensor_row(self, call, slot.get(), one, true)) return false;
  }
  return true;
}

inline bool has_lists(PyObject* tuple) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(tuple); ++at) {
    PyObject* one = PyTuple_GET_ITEM(tuple, at);
    if (PyList_Check(one) || PyTuple_Check(one)) return true;
  }
  return false;
}

// Operations._results
inline bool results(Operations* self, PyObject* plan, const Call& call, PyObject* args,
                    PyObject* kwargs, PyObject* result) {
  PyObject *kind = field(plan, kKind), *news = field(plan, kNews);
  const bool is_plain = kind == self->plain || kind == self->copy;
  if (!is_plain && PyFloat_CheckExact(result) && kind == self->number)
    return scalar(self, call, result);
  const bool has_news = PyTuple_GET_SIZE(news) != 0;
  const long returns = PyLong_AsLong(field(plan, kResults));
  const bool is_one = THPVariable_Check(result);
  const bool is_list = PyList_CheckExact(result) && returns == 1;
  const bool are_several = PyTuple_CheckExact(result) && returns > 1 &&
                           PyTuple_GET_SIZE(result) == returns && !has_lists(result);
  if (is_plain && (is_one || are_several || is_list || !has_news)) {
    if (!arguments(self, call, plan, kWrites, args, kwargs)) return false;
    if (!has_news) return true;
    if (is_one) return tensor_row(self, call, words.out, result, true);
    return is_list ? list(self, call, words.out_list, result, true)
                   : several(self, call, news, result);
  }
  const Ref none(kwargs == nullptr ? PyDict_New() : Py_NewRef(kwargs));
  if (!none) return false;
  PyObject* given[] = {self->mode, plan,       call.head.get(), call.occurrence.get(),
                       args,       none.get(), result};
  return bool(Ref(PyObject_VectorcallMethod(words._results, given, 7, nullptr)));
}

}  // namespace bitstep
