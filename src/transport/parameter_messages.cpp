#include <tutti/transport/parameter_messages.hpp>

#include <cstdint>
#include <span>
#include <vector>

#include <tutti/base/parameter_layouts.hpp>

namespace tutti {

void send_parameters(Transport& transport, Rank to, Tag tag, const ParameterSet& set, Deadline deadline) {
  const std::vector<std::int64_t> words = layout_words(set);
  send(transport, to, tag, std::as_bytes(std::span(words)), deadline);
  for (const NamedArray& array : set) send(transport, to, tag, array.bytes(), deadline);
}

ParameterSet receive_parameters(Transport& transport, Rank from, Tag tag, Deadline deadline) {
  std::vector<std::int64_t> words;
  {
    const Delivery delivery = transport.receive(from, tag, deadline);
    words.resize(delivery.header().length / sizeof(std::int64_t));
    delivery.copy_to(std::as_writable_bytes(std::span(words)));
  }
  ParameterSet set = set_with_layouts(words);
  for (NamedArray& array : set) {
    if (array.bytes().size() > kEagerBytes) transport.expect(from, tag);
    transport.receive(from, tag, deadline).copy_to(array.bytes());
  }
  return set;
}

void send_text(Transport& transport, Rank to, Tag tag, std::string_view text, Deadline deadline) {
  send(transport, to, tag, std::as_bytes(std::span(text)), deadline);
}

std::string receive_text(Transport& transport, Rank from, Tag tag, Deadline deadline) {
  const Delivery delivery = transport.receive(from, tag, deadline);
  std::string text(delivery.header().length, '\0');
  delivery.copy_to(std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace tutti
