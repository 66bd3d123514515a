#include <tutti/transport/transport.hpp>

#include <cstring>

#include <fmt/format.h>

namespace tutti {

std::string_view to_string(Locality locality) {
  switch (locality) {
    case Locality::same_address_space: return "same address space";
    case Locality::same_host: return "same host";
    case Locality::remote: break;
  }
  return "remote";
}

void Delivery::copy_to(std::span<std::byte> destination) const {
  if (destination.size() != header_.length) {
    throw UsageError(
        fmt::format("the message holds {} bytes, and the memory to receive it {}", header_.length, destination.size()));
  }
  payload_->read([&](std::size_t offset, std::span<const std::byte> piece) {
    if (!piece.empty()) std::memcpy(destination.data() + offset, piece.data(), piece.size());
  });
}

}  // namespace tutti
