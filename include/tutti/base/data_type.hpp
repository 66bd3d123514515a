// The element types that arrays and messages are made of.
//
//   static_assert(data_type_of<float> == DataType::float32);
//   dispatch(type, [&]<typename T>(std::type_identity<T>) { fold<T>(...); });
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

#include <tutti/base/half.hpp>

namespace tutti {

enum class DataType : std::uint8_t { float32, float64, float16, bfloat16, int32, int64 };

inline constexpr DataType kAllDataTypes[] = {DataType::float32,  DataType::float64, DataType::float16,
                                             DataType::bfloat16, DataType::int32,   DataType::int64};

template <typename T>
concept Element = std::same_as<T, float> || std::same_as<T, double> || std::same_as<T, float16> ||
    std::same_as<T, bfloat16> || std::same_as<T, std::int32_t> || std::same_as<T, std::int64_t>;

template <Element T>
inline constexpr DataType data_type_of = std::same_as<T, float>          ? DataType::float32
                                         : std::same_as<T, double>       ? DataType::float64
                                         : std::same_as<T, float16>      ? DataType::float16
                                         : std::same_as<T, bfloat16>     ? DataType::bfloat16
                                         : std::same_as<T, std::int32_t> ? DataType::int32
                                                                         : DataType::int64;

// Calls `f(std::type_identity<T>{})` with the T of `type`.
template <typename F>
constexpr decltype(auto) dispatch(DataType type, F&& f) {
  switch (type) {
    case DataType::float32: return std::forward<F>(f)(std::type_identity<float>{});
    case DataType::float64: return std::forward<F>(f)(std::type_identity<double>{});
    case DataType::float16: return std::forward<F>(f)(std::type_identity<float16>{});
    case DataType::bfloat16: return std::forward<F>(f)(std::type_identity<bfloat16>{});
    case DataType::int32: return std::forward<F>(f)(std::type_identity<std::int32_t>{});
    case DataType::int64: break;
  }
  return std::forward<F>(f)(std::type_identity<std::int64_t>{});
}

constexpr std::size_t size_of(DataType type) {
  return dispatch(type, []<typename T>(std::type_identity<T>) { return sizeof(T); });
}

constexpr bool is_floating(DataType type) { return type != DataType::int32 && type != DataType::int64; }

constexpr std::string_view to_string(DataType type) {
  switch (type) {
    case DataType::float32: return "float32";
    case DataType::float64: return "float64";
    case DataType::float16: return "float16";
    case DataType::bfloat16: return "bfloat16";
    case DataType::int32: return "int32";
    case DataType::int64: break;
  }
  return "int64";
}

}  // namespace tutti
