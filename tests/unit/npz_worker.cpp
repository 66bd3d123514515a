// Reads the .npy files of a folder, and writes their arrays to two .npz files there: all.npz, and wide.npz with the
// fields that zip has for files beyond 4 GiB.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include <tutti/base/error.hpp>
#include <tutti/data/npz.hpp>

int main(int argc, char** argv) try {
  if (argc != 2) return 2;
  const std::filesystem::path folder = argv[1];
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() == ".npy") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  const auto write = [&](const char* name, tutti::NpzOptions options) {
    std::ofstream stream(folder / name, std::ios::binary);
    tutti::NpzWriter npz(stream, options);
    for (const std::filesystem::path& file : files) {
      const tutti::NpyArray array = tutti::read_npy(file);
      npz.add(file.stem().string(), {.type = array.type, .shape = array.shape, .bytes = array.bytes});
    }
    npz.finish();
  };
  write("all.npz", {});
  write("wide.npz", {.zip64_from = 1});
  return 0;
} catch (const tutti::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
