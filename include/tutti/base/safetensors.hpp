// Parameter sets as safetensors files (https://github.com/huggingface/safetensors), which Python reads and writes, too.
//
//   write_safetensors("net.safetensors", parameters, {.metadata = {{"epoch", "3"}}, .checksum = true});
//   SafetensorsFile file = read_safetensors("net.safetensors");
//   file.parameters.at("hidden.weight").array();
//
// A file is the length of its header (8 bytes, the lowest first), the header (JSON: each array's type, shape and place,
// and texts by name as metadata), and the data of all arrays without holes. Arrays come back in the order of the
// header, which is that of the set. In the data those of wider elements come first, and the data begins at a multiple
// of 8: so each element is aligned for whoever maps the file into memory.
//
// A file is written beside its target and then takes its place (base/atomic_file.hpp). What is read is believed in
// nothing: lengths, places, types and shapes are checked against each other and the file's size before memory is taken.
// Each failure is an Error that names the file:
//
//   cannot read net.safetensors: its header describes 4000 bytes of data, and 3128 follow: the file is cut short
//
// The checksum, where wanted, is a metadata text "tutti.checksum" of 16 digits: the Checksum (base/checksum.hpp) of the
// whole file, header included, with these digits being zeros. Whoever changes a file must leave it out or compute it
// anew.
#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <tutti/base/parameter_set.hpp>
#include <tutti/base/parameter_store.hpp>

namespace tutti {

struct SafetensorsWriteOptions {
  std::map<std::string, std::string> metadata = {};
  bool checksum = false;
  // After those of the set; each is read twice where there is a checksum, and is not in memory otherwise.
  std::vector<ArrayOnDemand> more = {};
};

// Names and metadata must be UTF-8. An array cannot be named "__metadata__", nor a text "tutti.checksum".
void write_safetensors(const std::filesystem::path& path, const ParameterSet& parameters,
                       const SafetensorsWriteOptions& options = {});

struct SafetensorsFile {
  ParameterSet parameters;
  std::map<std::string, std::string> metadata = {};  // without the checksum
  bool has_checksum = false;                         // it had one, which is right
};

struct SafetensorsReadOptions {
  // Refuse a file that has no checksum. One that is there is compared always; but damage may hit its name.
  bool require_checksum = false;
  // Arrays named so are not kept, so that they need not fit into memory: each is handed on, where there is somebody to
  // take it, before the checksum is compared.
  std::function<bool(const std::string& name)> is_aside = {};
  std::function<void(const ParameterLayout& layout, std::span<const std::byte> bytes)> take_aside = {};
};

SafetensorsFile read_safetensors(const std::filesystem::path& path, const SafetensorsReadOptions& options = {});

}  // namespace tutti
