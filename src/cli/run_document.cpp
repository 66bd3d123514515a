#include "cli/run_document.hpp"

#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <tutti/base/error.hpp>
#include <tutti/base/json.hpp>
#include <tutti/train/plugin.hpp>

namespace tutti::cli {

namespace fs = std::filesystem;

void RunDocument::add_to(CommandLine& line) {
  line.positional("run", named_, "the run file, or the output folder of a run");
  line.option("--set", sets_, "another value for the run file, as in train.epochs=5; may be given several times");
  line.option("--plugin", plugins_,
              "a library that brings more that the run file can name; may be given several times");
}

void RunDocument::add_output_to(CommandLine& line) {
  output_option_ = line.option("--output", output_, "the folder to write to, in place of the run file's");
}

// A folder stands for the run file that a run has left in it.
fs::path RunDocument::file() const {
  if (named_.empty()) throw UsageError(fmt::format("expected a run file: tutti {} run.json", verb_));
  std::error_code problem;
  if (!fs::is_directory(named_, problem)) return named_;
  fs::path inside = fs::path(named_) / "run.json";
  if (!fs::exists(inside, problem))
    throw UsageError(fmt::format("{} is a folder without a run in it: there is no run.json", named_));
  return inside;
}

JsonDocument RunDocument::with_sets(JsonDocument document) const {
  for (const std::string& set : sets_) {
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos)
      throw UsageError(fmt::format("--set {}: expected a path and a value, as in train.epochs=5", set));
    document = document.with(set.substr(0, equals), set.substr(equals + 1));
  }
  return document;
}

Run RunDocument::read() const {
  const auto in_quotes = [](const std::string& text) { return nlohmann::json(text).dump(); };
  JsonDocument document = JsonDocument::read_file(file());
  // Of a folder that was named, that is the one, wherever it was when the run began.
  std::error_code problem;
  if (fs::is_directory(named_, problem)) document = document.with("output", in_quotes(named_));
  document = with_sets(std::move(document));
  if (output_option_ && output_option_->was_given() && output_.empty())
    throw UsageError("--output: expected a folder, found nothing");
  if (!output_.empty()) document = document.with("output", in_quotes(output_));
  auto registry = std::make_shared<Registry>();
  for (const std::string& plugin : plugins_) {
    try {
      load_plugin(plugin, *registry);
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("--plugin {}", error.what()));
    }
  }
  return read_run(document.root(), std::move(registry));
}

std::vector<std::string> RunDocument::arguments() const {
  std::vector<std::string> words{named_};
  for (const std::string& set : sets_) words.insert(words.end(), {"--set", set});
  for (const std::string& plugin : plugins_) words.insert(words.end(), {"--plugin", plugin});
  if (!output_.empty()) words.insert(words.end(), {"--output", output_});
  return words;
}

std::string RunDocument::words() const {
  std::string text;
  for (const std::string& word : arguments()) text += (text.empty() ? "" : " ") + shell_word(word);
  return text;
}

std::string shell_word(const std::string& word) {
  constexpr const char* kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char letter : word) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

}  // namespace tutti::cli
