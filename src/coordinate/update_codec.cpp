#include <tutti/coordinate/update_codec.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <fmt/format.h>
#include <tutti/base/error.hpp>
#include <tutti/kernels/compression.hpp>

namespace tutti {
namespace {

// How an array goes: a byte before it says so.
enum class ArrayCode : std::uint8_t { whole, float16, bfloat16, largest };

class MessageWriter {
 public:
  template <typename T>
  void put(const T& value) {
    put_bytes(std::as_bytes(std::span(&value, 1)));
  }
  void put_bytes(std::span<const std::byte> bytes) { bytes_.insert(bytes_.end(), bytes.begin(), bytes.end()); }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class MessageReader {
 public:
  explicit MessageReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::span<const std::byte> take(std::size_t count) {
    if (count > bytes_.size())
      throw UsageError(
          fmt::format("a message of changes ends too early: expected {} more bytes, found {}", count, bytes_.size()));
    const std::span<const std::byte> taken = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return taken;
  }
  template <typename T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof(T)).data(), sizeof(T));
    return value;
  }
  template <typename T>
  std::vector<T> take_all(std::size_t count) {
    const std::span<const std::byte> bytes = take(count * sizeof(T));
    std::vector<T> values(count);
    if (count > 0) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::size_t left() const { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
};

// Only these are compressed: what has 16 bits already, and integers, go as they are.
bool is_wide(DataType type) { return type == DataType::float32 || type == DataType::float64; }

bool is_compressed(DataType type, const Compression& compression, bool is_trained) {
  return is_trained && is_wide(type) && !std::holds_alternative<NoCompression>(compression);
}

std::size_t count_of_largest(std::size_t numbers, double fraction) {
  return static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(numbers)));
}

// Numbers of T with what remains, as 16 bits.
template <typename T>
void put_narrow(MessageWriter& message, std::span<const T> numbers, std::span<T> remains, DataType narrow_type) {
  constexpr double kMostFloat16 = 65504;
  constexpr double kMostBFloat16 = 3.38953138925153547590470800371487867e38;
  std::vector<std::byte> sent(numbers.size() * size_of(narrow_type));
  std::vector<T> left(numbers.size());
  narrow({.gradients = numbers,
          .remains = std::span<const T>(remains),
          .sent = Array(sent.data(), numbers.size(), narrow_type),
          .left = left},
         narrow_type == DataType::float16 ? kMostFloat16 : kMostBFloat16);
  std::ranges::copy(left, remains.begin());
  message.put_bytes(sent);
}

template <typename T>
void put_largest(MessageWriter& message, std::span<const T> numbers, std::span<T> remains, double fraction) {
  for (std::size_t i = 0; i < numbers.size(); ++i) remains[i] += numbers[i];
  const auto sparse = top_k(std::span<const T>(remains), count_of_largest(numbers.size(), fraction));
  message.put(static_cast<std::uint64_t>(sparse.indices.size()));
  message.put_bytes(std::as_bytes(std::span(sparse.indices)));
  message.put_bytes(std::as_bytes(std::span(sparse.values)));
  for (const std::uint32_t index : sparse.indices) remains[index] = 0;
}

template <typename T>
void put_array(MessageWriter& message, std::span<const T> numbers, std::span<T> remains,
               const Compression& compression) {
  if (const TopK* largest = std::get_if<TopK>(&compression)) {
    message.put(ArrayCode::largest);
    put_largest(message, numbers, remains, largest->fraction);
  } else if (std::holds_alternative<Float16>(compression)) {
    message.put(ArrayCode::float16);
    put_narrow(message, numbers, remains, DataType::float16);
  } else {
    message.put(ArrayCode::bfloat16);
    put_narrow(message, numbers, remains, DataType::bfloat16);
  }
}

void take_narrow(MessageReader& message, DataType narrow_type, Array to) {
  const std::span<const std::byte> sent = message.take(to.length() * size_of(narrow_type));
  std::vector<std::uint16_t> aligned(to.length());
  if (!aligned.empty()) std::memcpy(aligned.data(), sent.data(), sent.size());
  convert(ConstArray(aligned.data(), aligned.size(), narrow_type), to);
}

template <typename T>
void take_largest(MessageReader& message, std::span<T> to) {
  const auto count = message.take<std::uint64_t>();
  if (count > to.size())
    throw UsageError(fmt::format("a message of changes has {} numbers for an array of {}", count, to.size()));
  BasicSparseGradient<T> sparse{.indices = {}, .values = {}, .original_len = to.size()};
  sparse.indices = message.take_all<std::uint32_t>(static_cast<std::size_t>(count));
  sparse.values = message.take_all<T>(static_cast<std::size_t>(count));
  if (!std::ranges::is_sorted(sparse.indices, std::ranges::less_equal{}))
    throw UsageError("a message of changes has places that are not in order");
  add_to(to, sparse);
}

}  // namespace

std::size_t encoded_bytes(const ParameterLayout& array, const Compression& compression, bool is_trained) {
  const auto numbers = static_cast<std::size_t>(element_count(array.shape).value_or(0));
  const std::size_t size = size_of(array.type);
  if (!is_compressed(array.type, compression, is_trained)) return sizeof(ArrayCode) + numbers * size;
  if (const auto* largest = std::get_if<TopK>(&compression))
    return sizeof(ArrayCode) + sizeof(std::uint64_t) +
           count_of_largest(numbers, largest->fraction) * (sizeof(std::uint32_t) + size);
  return sizeof(ArrayCode) + numbers * sizeof(std::uint16_t);
}

std::vector<std::byte> encode_change(const ParameterSet& change, const Compression& compression,
                                     const EncodeOptions& options) {
  validate(compression);
  if (std::holds_alternative<PowerSgd>(compression)) throw UsageError(kPowerSgdIsForReplicas);
  ParameterSet none;
  ParameterSet& remains = options.remains != nullptr ? *options.remains : none;
  // Before anything is changed.
  for (const NamedArray& its : remains) {
    const NamedArray* array = change.find(its.name());
    if (array == nullptr || array->layout() != its.layout())
      throw UsageError(fmt::format("what remains of another change does not fit: \"{}\" is {}, expected {}", its.name(),
                                   to_string(its.layout()),
                                   array == nullptr ? "no such array" : to_string(array->layout())));
  }
  MessageWriter message;
  for (std::size_t i = 0; i < change.size(); ++i) {
    const NamedArray& array = change[i];
    const bool is_trained = options.is_trained.empty() || options.is_trained[i];
    if (!is_compressed(array.type(), compression, is_trained)) {
      message.put(ArrayCode::whole);
      message.put_bytes(array.bytes());
      continue;
    }
    if (remains.find(array.name()) == nullptr) remains.add(array.layout());
    NamedArray& its = remains.at(array.name());
    if (array.type() == DataType::float32)
      put_array<float>(message, array.values<float>(), its.values<float>(), compression);
    else
      put_array<double>(message, array.values<double>(), its.values<double>(), compression);
  }
  return message.take();
}

ParameterSet decode_change(std::span<const std::byte> message, const ParameterSet& layout) {
  MessageReader reader(message);
  ParameterSet change;
  for (const NamedArray& expected : layout) {
    const Array to = change.add(expected.layout());
    const auto code = reader.take<std::uint8_t>();
    const bool is_narrow =
        code == static_cast<std::uint8_t>(ArrayCode::float16) || code == static_cast<std::uint8_t>(ArrayCode::bfloat16);
    const bool is_largest = code == static_cast<std::uint8_t>(ArrayCode::largest);
    if ((is_narrow || is_largest) && !is_wide(to.type()))
      throw UsageError(fmt::format("a message of changes has \"{}\" compressed, which is {}", expected.name(),
                                   to_string(to.type())));
    if (is_narrow) {
      take_narrow(reader,
                  code == static_cast<std::uint8_t>(ArrayCode::float16) ? DataType::float16 : DataType::bfloat16, to);
    } else if (is_largest && to.type() == DataType::float32) {
      take_largest(reader, change[change.size() - 1].values<float>());
    } else if (is_largest) {
      take_largest(reader, change[change.size() - 1].values<double>());
    } else if (code == static_cast<std::uint8_t>(ArrayCode::whole)) {
      std::ranges::copy(reader.take(to.bytes()), to.data());
    } else {
      throw UsageError(fmt::format("a message of changes has the unknown code {} for \"{}\"", code, expected.name()));
    }
  }
  if (reader.left() > 0) throw UsageError(fmt::format("a message of changes has {} bytes too many", reader.left()));
  return change;
}

}  // namespace tutti
