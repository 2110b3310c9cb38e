// Tensors by name: in memory, as a state dictionary whose entries are taken one by one, and in a
// .safetensors file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <halftone/core/tensor.h>

namespace halftone {

// Tensors by name: the content of state dictionaries and files.

using NamedTensors = std::map<std::string, Tensor>;

// Tensors by name that need not all be in memory at once: a file writer asks for one at a time.

/// A tensor's description without its data.
struct TensorInfo {
  std::string name;
  DType dtype = f32;
  Shape shape{};

  int64_t bytes() const { return numel_of(shape) * size_of(dtype); }
};
inline TensorInfo info_of(const std::string& name, const Tensor& x) {
  return x.defined() ? TensorInfo{name, x.dtype(), x.shape()} : TensorInfo{name};
}

struct TensorSource {
  std::vector<TensorInfo> infos{};
  /// Returns the tensor of a name, with the dtype and shape of its info.
  std::function<Tensor(const std::string& name)> tensor{};
};

/// Returns a source whose tensors all exist; the source keeps handles.
TensorSource source_of(const NamedTensors& tensors);

// Entries of a state dictionary: taken by name, and the rest refused.

/// Returns the entries whose names begin with `prefix`, under names without it.
template <class T>
std::map<std::string, T> part_of(const std::map<std::string, T>& all, std::string_view prefix) {
  std::map<std::string, T> part;
  for (auto at = all.lower_bound(std::string(prefix));
       at != all.end() && at->first.starts_with(prefix); ++at)
    part[at->first.substr(prefix.size())] = at->second;
  return part;
}

/// Returns part_of(all, prefix), and removes these entries from `all`.
template <class T>
std::map<std::string, T> take_part(std::map<std::string, T>& all, std::string_view prefix) {
  std::map<std::string, T> part = part_of(all, prefix);
  std::erase_if(all, [&](const auto& entry) { return entry.first.starts_with(prefix); });
  return part;
}

/// Adds the entries of `part` under names that begin with `prefix`.
template <class T>
void add_part(std::map<std::string, T>& all, std::string_view prefix,
              const std::map<std::string, T>& part) {
  for (const auto& [name, value] : part) all[std::string(prefix) + name] = value;
}

/// The entries of a state that nothing has taken yet. Tensors are shared, not copied. Errors are in
/// the name of `loading` and end with "Load what `saver` saved."
class Entries {
 public:
  Entries(std::string_view loading, std::string_view saver, NamedTensors state)
      : loading_(loading), saver_(saver), rest_(std::move(state)) {}

  bool has(const std::string& name) const { return rest_.contains(name); }
  /// Takes an entry; returns an undefined tensor if there is none of that name.
  Tensor find(const std::string& name);
  /// Takes an entry. Throws UsageError if there is none, or if its tensor is undefined.
  Tensor take(const std::string& name);
  /// Takes an entry, and throws as above. Throws ShapeError for another shape or dtype.
  Tensor take(const std::string& name, const Shape& shape, DType dtype);
  /// Takes an entry of one element. Throws UsageError for any other, or if there is none.
  double number(const std::string& name);
  /// Takes an entry as number() does. Throws UsageError, in which `called` names the value, unless
  /// it is a whole number from 0 to 9e15.
  int64_t count(const std::string& name, std::string_view called);
  /// Takes a text, stored as bytes. Throws UsageError if there is none, or if its dtype is not u8.
  std::string text(const std::string& name);
  /// Takes the entries whose names begin with `prefix`, and returns them under names without it.
  NamedTensors part(std::string_view prefix) { return take_part(rest_, prefix); }

  const NamedTensors& rest() const { return rest_; }
  /// Throws UsageError if an entry is left.
  void refuse_rest() const;

 private:
  std::string_view loading_, saver_;
  NamedTensors rest_;
};

/// The tensor that stores a text in a state: [bytes], u8.
Tensor text_tensor(std::string_view text);

/// Returns whether two tensors of any dtypes have the same values, to the bit.
bool same_values(const Tensor& a, const Tensor& b);
/// Returns a value of x, if any, that a conversion to `dtype` would change: a finite number to
/// infinity or NaN, or one that an integer dtype cannot hold. Rounding of floats does not count.
std::optional<double> lost_value(const Tensor& x, DType dtype);

// safetensors (https://github.com/huggingface/safetensors): u64 little-endian N, N bytes of JSON,
// the data. Each entry of the JSON maps a name to {"dtype", "shape", "data_offsets": [begin, end)};
// "__metadata__" maps strings to strings. Files are exchanged between PyTorch and halftone, so the
// reader treats them as hostile: see named_tensors.cpp.

struct SafetensorsFile {
  NamedTensors tensors{};
  std::map<std::string, std::string> metadata{};
  /// The file's tensors that no Tensor can be, which were not read: names, with what they are, such
  /// as "[3, 4] F4", printable. Their dtype is none of ours (I8, U16, U32, U64, F4, F8_E8M0, C64,
  /// ...), or they have more than 8 dimensions.
  std::map<std::string, std::string> unsupported{};

  /// Returns a tensor by its name. Throws UnsupportedError, with its dtype, for one of
  /// `unsupported`. Throws UsageError, with the file's names, if the file has no such tensor.
  const Tensor& at(const std::string& name) const;
  /// Throws as at() for the first of `unsupported`, if there is one.
  void require_all() const;
};

/// Writes the tensors, row-major, with exactly the bytes that the official library writes. The file
/// appears complete or not at all: it is written next to its final path, synchronized and renamed.
/// Throws FormatError if the file cannot be written. Throws UsageError for undefined tensors, and
/// for names that no file can hold.
void save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                      const std::map<std::string, std::string>& metadata = {});
/// Writes the same bytes, but asks for the tensors one after the other: each is in memory only
/// while it is written. Throws UsageError for a tensor that differs from its TensorInfo.
void stream_safetensors(const std::filesystem::path& path, const TensorSource& tensors,
                        const std::map<std::string, std::string>& metadata = {});

/// Reads a whole file into row-major tensors on the CPU, charged to the current MemoryScope. Throws
/// FormatError for files that are missing or malformed. Throws UnsupportedError for a tensor of
/// more than 64 dimensions. The result lists other tensors that no Tensor can be in `unsupported`.
SafetensorsFile load_safetensors(const std::filesystem::path& path);

}  // namespace halftone
