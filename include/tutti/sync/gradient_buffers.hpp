// Named gradients that lie one behind the other in one array: what is synchronised together.
//
//   GradientBuffers gradients({{"hidden.weight", {256, 784}}, {"hidden.bias", {256}}});
//   backward(gradients["hidden.weight"], gradients["hidden.bias"]);       // Arrays, to be filled
//   sync.sync_buffers(gradients);
//
//   GradientBuffers of_mine(shapes, Array(memory));                       // in memory of the caller's
//
// Names tell gradients apart when they come again in other buffers: what a compression kept of them goes by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <tutti/base/array.hpp>
#include <tutti/base/chunk.hpp>

namespace tutti {

struct NamedShape {
  std::string name;
  std::vector<std::int64_t> shape;  // none for a single number
};

class GradientBuffers {
 public:
  struct Piece {
    std::string name;
    std::vector<std::int64_t> shape;
    Slice slice;  // of all()
  };

  // Zeros, in memory of its own. Throws a UsageError where a name comes twice, a dimension is negative, or the type is
  // neither float32 nor float64.
  explicit GradientBuffers(std::vector<NamedShape> shapes, DataType type = DataType::float32);
  // In memory that outlives it, and is as long as the pieces together.
  GradientBuffers(std::vector<NamedShape> shapes, Array memory);

  // A moved one takes its memory along: arrays stay valid.
  GradientBuffers(GradientBuffers&&) noexcept = default;
  GradientBuffers& operator=(GradientBuffers&&) noexcept = default;

  Array all() const { return all_; }
  DataType type() const { return all_.type(); }

  // A UsageError where there is no such piece, with the nearest name.
  Array operator[](std::string_view name) const;
  Array operator[](std::size_t index) const;

  const std::vector<Piece>& pieces() const { return pieces_; }

 private:
  std::size_t lay_out(std::vector<NamedShape> shapes);

  std::vector<Piece> pieces_;
  std::map<std::string, std::size_t, std::less<>> index_of_;
  std::vector<std::byte> own_;
  Array all_;
};

}  // namespace tutti
