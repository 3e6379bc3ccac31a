// The rows of the operations that nearly all are: on plain tensors in host memory.
//
// 1. `dispatch` stands where `operations.py` has `__torch_dispatch__`, and does the same.
// 2. Every state is Python's: the cells of the columns, the dicts of what was seen, the counts of a
//    scope. What is rare (collectives, quantized tensors, drawing operations, memory that nobody
//    wrote) is handed back, as a whole operation or as one tensor.
// 3. So a row is the same whoever made it: tests/observe/test_observe_native.py compares them.
//
// Raw CPython: a call through a binding library takes as long as the whole row of a small tensor.

#include "calls.h"

#include <c10/core/impl/TorchDispatchModeTLS.h>

namespace bitstep {
namespace {

constexpr long kTrims = 0xFFF;  // As in operations.py.

extern PyTypeObject type;

// hooks.failed(error): false if it raises, as with --strict.
bool told(Operations* self) {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
  PyObject *kind = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &error, &trace);
  PyErr_NormalizeException(&kind, &error, &trace);
  if (trace != nullptr) PyException_SetTraceback(error, trace);
  const Ref owned[] = {Ref(kind), Ref(error), Ref(trace)};
  return bool(Ref(PyObject_CallMethodOneArg(self->hooks, words.failed, error)));
}

// Operations._raised, with the error of the operation kept.
void raised(Operations* self, const Call& call) {
  PyObject *kind = nullptr, *error = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &error, &trace);
  PyObject* given[] = {self->mode, call.head.get(), call.occurrence.get()};
  const Ref done(PyObject_VectorcallMethod(words._raised, given, 3, nullptr));
  if (!done && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();
  if (PyErr_Occurred()) {  // Ctrl-C
    for (PyObject* object : {kind, error, trace}) Py_XDECREF(object);
  } else {
    PyErr_Restore(kind, error, trace);
  }
}

// Work of ours inside of the program's: what C++ throws is an error of Python like any other.
template <class Work>
auto careful(Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception& error) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_RuntimeError, error.what());
    return {};
  }
}

bool are_plain(PyObject* types) {
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(types); ++at) {
    if (!THPVariable_CheckTypeExact(reinterpret_cast<PyTypeObject*>(PyTuple_GET_ITEM(types, at)))) {
      return false;
    }
  }
  return true;
}

bool is_nothing_else_going_on(Operations* self) {
  const struct {
    PyObject *of, *name;
    int is;
  } states[] = {
      {self->hooks, words.asleep, 0},    {self->mode, words.active, 1},
      {self->mode, words._inside, 0},    {self->regions, words.inside, 0},
      {self->pending, words.waiting, 0}, {self->pending, words.open, 0},
      {self->pending, words.objects, 0},
  };
  for (const auto& state : states) {
    if (is_true(state.of, state.name) != state.is) return false;  // Or failed: Python finds it.
  }
  if (c10::impl::TorchDispatchModeTLS::stack_len() != 0) return false;
  const Ref thread(PyObject_GetAttr(self->scope, words.thread));
  return thread && PyLong_AsUnsignedLong(thread.get()) == PyThread_get_thread_ident();
}

// The plan of an operation that can be recorded here; borrowed, null for any other.
PyObject* plan_of(Operations* self, PyObject* func) {
  const Ref id(PyLong_FromVoidPtr(func));
  PyObject* known = id ? PyDict_GetItemWithError(self->plans, id.get()) : nullptr;
  if (known == nullptr) return nullptr;
  PyObject* plan = PyTuple_GET_ITEM(known, 1);
  const bool may_be_blank = field(plan, kKind) == self->copy && PyDict_GET_SIZE(self->blank);
  const bool is_rare = field(plan, kKind) == self->silent || field(plan, kCollective) == Py_True ||
                       field(plan, kDraws) == Py_True || field(plan, kWhen) != Py_None ||
                       field(plan, kBeta) != Py_None;
  return may_be_blank || is_rare ? nullptr : plan;
}

// Whether the operation is counted here: Python also trims, now and then.
bool counts(Operations* self) {
  const Ref count(PyObject_GetAttr(self->mode, words.count));
  const long next = count ? PyLong_AsLong(count.get()) + 1 : 0;
  const Ref more(PyLong_FromLong(next));
  return (next & kTrims) != 0 && more && PyObject_SetAttr(self->mode, words.count, more.get()) == 0;
}

// dispatch(func, types, args, kwargs): Operations.__torch_dispatch__
PyObject* dispatch(Operations* self, PyObject* const* given, Py_ssize_t count) {
  PyObject *func = given[0], *types = given[1], *args = given[2];
  PyObject* kwargs = count < 4 || given[3] == Py_None ? nullptr : given[3];
  PyObject* plan = nullptr;
  if (!self->filtered && PyTuple_CheckExact(types) && PyTuple_CheckExact(args) &&
      are_plain(types) && is_nothing_else_going_on(self)) {
    plan = plan_of(self, func);
  }
  if (plan == nullptr || !counts(self)) {
    PyErr_Clear();
    PyObject* all[] = {self->mode, func, types, args, kwargs == nullptr ? Py_None : kwargs};
    return PyObject_VectorcallMethod(words._by_python, all, 5, nullptr);
  }
  const auto call = careful([&] { return before(self, plan, args, kwargs); });
  if (!call) return told(self) ? PyObject_Call(func, args, kwargs) : nullptr;
  Ref result(PyObject_Call(func, args, kwargs));
  if (field(plan, kKind) == self->view) return result.release();
  if (!result) {
    raised(self, *call);
    return nullptr;
  }
  const bool done = careful([&] { return results(self, plan, *call, args, kwargs, result.get()); });
  if (!done && !told(self)) return nullptr;
  return result.release();
}

// Bound to the mode, as torch demands of what a mode dispatches with.
PyObject* bound_dispatch(PyObject* mode, PyObject* const* given, Py_ssize_t count) {
  if (count < 3 || count > 4)
    return PyErr_Format(PyExc_TypeError, "dispatch of %zd arguments", count);
  const Ref of(PyObject_GetAttr(mode, words._native));
  if (!of) return nullptr;
  if (!Py_IS_TYPE(of.get(), &type)) return PyErr_Format(PyExc_TypeError, "_native is another's");
  try {
    return dispatch(reinterpret_cast<Operations*>(of.get()), given, count);
  } catch (const std::exception& error) {
    return PyErr_Occurred() ? nullptr : PyErr_Format(PyExc_RuntimeError, "%s", error.what());
  }
}

PyMethodDef of_mode = {"__torch_dispatch__",
                       reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(bound_dispatch)),
                       METH_FASTCALL, nullptr};

// dispatch(): the method of the mode, which has to hold `self` as `_native`.
PyObject* method(PyObject* of, PyObject*) {
  return PyCFunction_New(&of_mode, reinterpret_cast<Operations*>(of)->mode);
}

// Operations(held, dtypes, kernel, k, seed, rehash, filtered): `held` by the names of HELD.
int init(PyObject* of, PyObject* args, PyObject*) {
  auto* self = reinterpret_cast<Operations*>(of);
  PyObject *held = nullptr, *dtypes = nullptr;
  long long kernel = 0, k = 0, seed = 0;
  if (!PyArg_ParseTuple(args, "O!O!LLLpp", &PyDict_Type, &held, &PyTuple_Type, &dtypes, &kernel, &k,
                        &seed, &self->rehash, &self->filtered)) {
    return -1;
  }
#define TAKE(name)                                               \
  if (PyObject* found = PyDict_GetItemString(held, #name)) {     \
    Py_XSETREF(self->name, Py_NewRef(found));                    \
  } else {                                                       \
    PyErr_SetString(PyExc_TypeError, "not handed over: " #name); \
    return -1;                                                   \
  }
  HELD(TAKE)
  self->kernel = reinterpret_cast<Kernel>(kernel);
  self->k = k;
  self->seed = seed;
  if (self->layouts == nullptr) self->layouts = new Layouts();
  for (Py_ssize_t at = 0; at < PyTuple_GET_SIZE(dtypes); ++at) {
    PyObject* dtype = PyTuple_GET_ITEM(dtypes, at);
    if (!THPDtype_Check(dtype)) {
      PyErr_SetString(PyExc_TypeError, "no dtype");
      return -1;
    }
    self->has_name[static_cast<size_t>(reinterpret_cast<THPDtype*>(dtype)->scalar_type)] = true;
  }
  return 0;
}

int traverse(PyObject* of, visitproc visit, void* arg) {
  auto* self = reinterpret_cast<Operations*>(of);
#define VISIT(name) Py_VISIT(self->name);
  HELD(VISIT)
  return 0;
}

int clear(PyObject* of) {
  auto* self = reinterpret_cast<Operations*>(of);
#define CLEAR(name) Py_CLEAR(self->name);
  HELD(CLEAR)
  return 0;
}

void dealloc(PyObject* of) {
  PyObject_GC_UnTrack(of);
  clear(of);
  if (Layouts* layouts = reinterpret_cast<Operations*>(of)->layouts) {
    layouts->clear();
    delete layouts;
  }
  Py_TYPE(of)->tp_free(of);
}

PyMethodDef methods[] = {
    {"dispatch", method, METH_NOARGS, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyTypeObject type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyModuleDef module = {PyModuleDef_HEAD_INIT,
                      "bitstep_operations",
                      nullptr,
                      -1,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr,
                      nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_bitstep_operations() {
#define INTERN(name) words.name = PyUnicode_InternFromString(#name);
  NAMES(INTERN)
  words.out = PyUnicode_InternFromString("out.0");
  words.out_list = PyUnicode_InternFromString("out");
  type.tp_name = "bitstep_operations.Operations";
  type.tp_basicsize = sizeof(Operations);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC;
  type.tp_new = PyType_GenericNew;
  type.tp_init = init;
  type.tp_dealloc = dealloc;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_methods = methods;
  if (PyType_Ready(&type) < 0) return nullptr;
  PyObject* made = PyModule_Create(&module);
  if (made != nullptr &&
      PyModule_AddObjectRef(made, "Operations", reinterpret_cast<PyObject*>(&type)) < 0) {
    return nullptr;
  }
  return made;
}

}  // namespace bitstep
