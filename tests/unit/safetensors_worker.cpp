// Writes a safetensors file, or prints what is in one, for safetensors_test.sh.
//
//   safetensors_worker write <file>
//   safetensors_worker show <file>      the checksum is required
#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <fmt/format.h>
#include <tutti/base/safetensors.hpp>

namespace tutti {
namespace {

template <Element T>
double number(T value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<double>(value);
  else
    return static_cast<double>(value.to_float());
}

template <Element T>
T element(double value) {
  if constexpr (std::is_arithmetic_v<T>)
    return static_cast<T>(value);
  else
    return T::from_float(static_cast<float>(value));
}

std::string_view type_name(DataType type) {
  switch (type) {
    case DataType::float32: return "F32";
    case DataType::float64: return "F64";
    case DataType::float16: return "F16";
    case DataType::bfloat16: return "BF16";
    case DataType::int32: return "I32";
    case DataType::int64: break;
  }
  return "I64";
}

void show(const std::string& path) {
  const SafetensorsFile file = read_safetensors(path, {.require_checksum = true});
  for (const auto& [key, text] : file.metadata) fmt::print("{} = {}\n", key, text);
  for (const NamedArray& array : file.parameters) {
    fmt::print("{} {} {}:", array.name(), type_name(array.type()), to_string(array.shape()));
    dispatch(array.type(), [&]<typename T>(std::type_identity<T>) {
      for (const T value : array.values<T>()) fmt::print(" {:.17g}", number(value));
    });
    fmt::print("\n");
  }
}

void write(const std::string& path) {
  ParameterSet set;
  for (const DataType type : {DataType::float16, DataType::int64, DataType::bfloat16, DataType::float64,
                              DataType::int32, DataType::float32}) {
    for (const Shape& shape : {Shape{}, {3, 5}, {0}, {1, 2, 1}}) {
      set.add({.name = fmt::format("{} {} \"ü\"", to_string(type), to_string(shape)), .shape = shape, .type = type});
      dispatch(type, [&]<typename T>(std::type_identity<T>) {
        double next = -4;
        for (T& value : set[set.size() - 1].template values<T>()) value = element<T>(next += 0.75);
      });
    }
  }
  write_safetensors(path, set, {.metadata = {{"épôque", "3"}, {"quotes", "\"'\\"}}, .checksum = true});
}

}  // namespace
}  // namespace tutti

int main(int count, char** arguments) {
  if (count != 3) return 2;
  try {
    arguments[1] == std::string_view("write") ? tutti::write(arguments[2]) : tutti::show(arguments[2]);
  } catch (const std::exception& problem) {
    fmt::print(stderr, "{}\n", problem.what());
    return 1;
  }
}
