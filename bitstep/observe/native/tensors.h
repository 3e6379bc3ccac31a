// Where the bytes of a tensor lie, and their sum, without asking Python: `digests.digest_of`.

#pragma once

#include "python.h"

#include <optional>
#include <unordered_map>
#include <vector>

namespace bitstep {

// fingerprint.cpu.run_sum
using Kernel = uint64_t (*)(int64_t address, int64_t nbytes, int64_t start, int64_t k,
                            int64_t seed);

constexpr int64_t kReleases = 1 << 16;    // Bytes from which other threads may run meanwhile.
constexpr size_t kMostOffsets = 1 << 20;  // Of all layouts that are remembered: 8 MB.

// What `digests.runs_of` says of a dtype, a shape and strides: asked of Python once.
struct Layout {
  PyObject *dtype, *shape, *gaps;  // gaps: None, or what else a sum depends on
  std::vector<int64_t> offsets;    // where each run begins in memory, in logical order
  int64_t run;                     // bytes of each; 0: Python has to look
};

struct Key {
  std::vector<int64_t> numbers;
  bool operator==(const Key& other) const { return numbers == other.numbers; }
};

struct Hash {
  size_t operator()(const Key& key) const {
    uint64_t hash = key.numbers.size();
    for (const int64_t number : key.numbers)
      hash = (hash ^ static_cast<uint64_t>(number)) * 0x9E3779B97F4A7C15ULL;
    return hash ^ (hash >> 32);
  }
};

struct Layouts {
  std::unordered_map<Key, Layout, Hash> known;
  Key key;             // Kept, so that no look-up allocates.
  size_t offsets = 0;  // How many all of them have.

  // Borrowed; null where Python failed.
  const Layout* of(PyObject* runs, PyObject* tensor, const c10::TensorImpl* impl) {
    const auto sizes = impl->sizes(), strides = impl->strides();
    key.numbers.assign(1, static_cast<int64_t>(c10::typeMetaToScalarType(impl->dtype())));
    key.numbers.insert(key.numbers.end(), sizes.begin(), sizes.end());
    key.numbers.insert(key.numbers.end(), strides.begin(), strides.end());
    const auto found = known.find(key);
    if (found != known.end()) return &found->second;
    Key asked = key;                                    // Python may come back here.
    const Ref said(PyObject_CallOneArg(runs, tensor));  // name, shape, gaps, offsets, run
    if (!said) return nullptr;
    PyObject* begins = PyTuple_GET_ITEM(said.get(), 3);
    Layout layout{PyTuple_GET_ITEM(said.get(), 0),
                  PyTuple_GET_ITEM(said.get(), 1),
                  PyTuple_GET_ITEM(said.get(), 2),
                  {},
                  PyLong_AsLongLong(PyTuple_GET_ITEM(said.get(), 4))};
    layout.offsets.reserve(static_cast<size_t>(PyList_GET_SIZE(begins)));
    for (Py_ssize_t at = 0; at < PyList_GET_SIZE(begins); ++at) {
      layout.offsets.push_back(PyLong_AsLongLong(PyList_GET_ITEM(begins, at)));
    }
    if (PyErr_Occurred()) return nullptr;
    if (offsets > kMostOffsets) clear();
    offsets += layout.offsets.size() + 1;
    for (PyObject* object : {layout.dtype, layout.shape, layout.gaps}) Py_INCREF(object);
    return &known.insert_or_assign(std::move(asked), std::move(layout)).first->second;
  }

  void clear() {
    for (auto& [_, layout] : known) {
      for (PyObject* object : {layout.dtype, layout.shape, layout.gaps}) Py_DECREF(object);
    }
    known.clear();
    offsets = 0;
  }
};

struct Operations {
  PyObject_HEAD
  HELD(DECLARE)
  bool has_name[static_cast<size_t>(at::ScalarType::NumOptions)];  // of dtypes
  Layouts* layouts;
  Kernel kernel;
  int64_t k, seed;
  int rehash, filtered;
};

struct Bytes {  // What is read of a tensor without asking Python.
  int64_t address, nbytes, base, version;
  const Layout* layout;
  bool is_foreign;
};

inline const c10::DispatchKeySet kOrdinary =
    c10::DispatchKeySet(
        {c10::DispatchKey::CPU, c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::AutogradCPU}) |
    c10::autocast_dispatch_keyset;

enum class Done { kYes, kNo, kError };

// kNo for a tensor that Python has to look at.
inline Done bytes_of(const Operations* self, PyObject* object, Bytes* bytes) {
  c10::TensorImpl* impl = THPVariable_Unpack(object).unsafeGetTensorImpl();
  // Views that negate, wrappers of vmap, quantized and nested tensors have a key of their own. A
  // tensor that was given the data of an inference tensor has no version and no such key.
  if ((impl->key_set().raw_repr() & ~kOrdinary.raw_repr()) != 0 || impl->is_inference() ||
      !impl->version_counter().enabled() || impl->has_symbolic_sizes_strides() ||
      !impl->has_storage() ||
      !self->has_name[static_cast<size_t>(c10::typeMetaToScalarType(impl->dtype()))]) {
    return Done::kNo;
  }
  const auto& storage = impl->unsafe_storage();
  const auto base = reinterpret_cast<int64_t>(storage.data());
  const auto width = static_cast<int64_t>(impl->itemsize());
  const int64_t nbytes = impl->numel() * width;
  if (base == 0 || nbytes == 0) return Done::kNo;
  const Layout* layout = self->layouts->of(self->runs_of, object, impl);
  if (layout == nullptr) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return Done::kError;  // Ctrl-C
    PyErr_Clear();
    return Done::kNo;
  }
  if (layout->run == 0) return Done::kNo;
  *bytes = Bytes{base + impl->storage_offset() * width,
                 nbytes,
                 base,
                 static_cast<int64_t>(impl->version_counter().current_version()),
                 layout,
                 !storage.unsafeGetStorageImpl()->resizable()};
  return Done::kYes;
}

inline uint64_t sum_of_runs(const Operations* self, const Bytes& bytes) {
  const int64_t run = bytes.layout->run;
  uint64_t sum = 0;
  int64_t start = 0;
  for (const int64_t offset : bytes.layout->offsets) {
    sum += self->kernel(bytes.address + offset, run, start, self->k, self->seed);
    start += run;
  }
  return sum;
}

inline PyObject* sum_of(const Operations* self, const Bytes& bytes) {
  uint64_t sum = 0;
  if (bytes.nbytes < kReleases) {
    sum = sum_of_runs(self, bytes);
  } else {
    Py_BEGIN_ALLOW_THREADS;
    sum = sum_of_runs(self, bytes);
    Py_END_ALLOW_THREADS;
  }
  return PyLong_FromUnsignedLongLong(sum);
}

}  // namespace bitstep
