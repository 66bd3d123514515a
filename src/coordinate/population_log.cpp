#include <tutti/coordinate/population_log.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <nlohmann/json.hpp>
#include <tutti/base/atomic_file.hpp>
#include <tutti/base/error.hpp>

namespace tutti {
namespace {

using nlohmann::ordered_json;

constexpr std::array kParts = {strategy::MemberPart::weights, strategy::MemberPart::optimizer_state,
                               strategy::MemberPart::hyper_parameters};

std::string lines_of(const std::vector<MemberRecord>& records) {
  std::string text;
  for (const MemberRecord& record : records) text += to_json(record).dump() + "\n";
  return text;
}

// Where whole lines end.
std::string whole_lines(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  text.resize(text.rfind('\n') + 1);  // nothing, where there is none
  return text;
}

}  // namespace

bool MemberRecord::has_copied(strategy::MemberPart part) const { return strategy::contains(copied, part); }

nlohmann::ordered_json to_json(const MemberRecord& record) {
  ordered_json json;
  json["generation"] = record.generation;
  if (record.of > 0) json["of"] = record.of;
  json["member"] = record.member;
  if (record.members > 0) json["members"] = record.members;
  json["score"] = record.score ? ordered_json(*record.score) : ordered_json();
  if (!record.samples.empty()) json["samples"] = record.samples;
  if (!record.failure.empty()) json["failure"] = record.failure;
  json["parent"] = nullptr;
  if (record.parent) {
    json["parent"] = {{"member", record.parent->member}, {"generation", record.parent->generation}};
    for (const strategy::MemberPart part : record.copied) json["copied"].push_back(part_name(part));
  }
  json["hyper_parameters"] = to_json(record.hyper_parameters);
  return json;
}

MemberRecord member_record_from_json(const JsonValue& value) {
  MemberRecord record{.generation = value.at("generation").integer({.min = 1}),
                      .member = value.at("member").integer({.min = 0}),
                      .hyper_parameters = hyper_parameters_from_json(value.at("hyper_parameters"))};
  if (const auto of = value.find("of")) record.of = of->integer({.min = record.generation});
  if (const auto members = value.find("members")) record.members = members->integer({.min = record.member + 1});
  if (const JsonValue score = value.at("score"); !score.is_null()) record.score = score.number();
  if (const auto samples = value.find("samples")) {
    for (const JsonValue& sample : samples->elements()) record.samples.push_back(sample.number());
  }
  if (const auto failure = value.find("failure")) record.failure = failure->string();
  if (const JsonValue parent = value.at("parent"); !parent.is_null()) {
    record.parent = MemberKey{.member = parent.at("member").integer({.min = 0}),
                              .generation = parent.at("generation").integer({.min = 1})};
    std::vector<std::string> names;
    for (const strategy::MemberPart part : kParts) names.emplace_back(part_name(part));
    for (const JsonValue& part : value.at("copied").elements())
      record.copied.push_back(
          kParts[static_cast<std::size_t>(std::ranges::find(names, part.one_of(names)) - names.begin())]);
  }
  value.refuse_other_keys(
      {"generation", "of", "member", "members", "score", "samples", "failure", "parent", "copied", "hyper_parameters"});
  return record;
}

PopulationLog::PopulationLog(std::filesystem::path file) : file_(std::move(file)) {}

std::vector<MemberRecord> PopulationLog::read(std::vector<std::string>* problems) const {
  const std::string text = whole_lines(file_);
  std::vector<MemberRecord> records;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    try {
      const JsonDocument line = JsonDocument::parse(std::string_view(text).substr(begin, end - begin), file_.string());
      records.push_back(member_record_from_json(line.root()));
    } catch (const UsageError& error) {
      if (problems != nullptr)
        problems->push_back(fmt::format("{}: line {} cannot be read, and is left out with what follows: {}",
                                        file_.string(), records.size() + 1, error.what()));
      break;
    }
    begin = end + 1;
  }
  return records;
}

void PopulationLog::write(const std::vector<MemberRecord>& records) const { write_file(file_, lines_of(records)); }

void PopulationLog::append(const std::vector<MemberRecord>& records) const {
  const auto fail = [&] { throw Error(fmt::format("cannot write {}: {}", file_.string(), std::strerror(errno))); };
  const int file = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file < 0) fail();
  const std::string text = lines_of(records);
  std::string_view rest = text;
  bool is_written = true;
  while (is_written && !rest.empty()) {
    const ssize_t count = ::write(file, rest.data(), rest.size());
    if (count >= 0)
      rest.remove_prefix(static_cast<std::size_t>(count));
    else
      is_written = errno == EINTR;
  }
  is_written = is_written && ::fdatasync(file) == 0;
  const int problem = errno;
  ::close(file);
  errno = problem;
  if (!is_written) fail();
}

}  // namespace tutti
