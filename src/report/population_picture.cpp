#include <tutti/report/population_picture.hpp>

#include <cstddef>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include <tutti/base/atomic_file.hpp>

#include "population_history.hpp"
#include "population_svg.hpp"

namespace tutti {

class PopulationPicture::Painter {
 public:
  Painter(std::filesystem::path folder, PopulationScore score) : folder_(std::move(folder)), score_(std::move(score)) {
    start();
  }

  void start() {
    history_ = {};
    history_.score_name = score_.name;
    history_.higher_is_better = score_.higher_is_better;
    bytes_read_ = 0;
    last_line_.clear();
  }

  void paint() {
    read_news();
    write_file(folder_ / "population.svg", detail::population_svg(history_));
  }

  // Members that do not keep in step may have gone on since a generation ended, and a run that was killed may not have
  // come to paint it.
  void finish() {
    if (read_news()) paint();
  }

 private:
  // The file grows while the run goes on: what was read of it stays. A run that goes on from fewer records than there
  // are writes it anew: the line that was read last is not there any more. A line that is not whole waits for its rest.
  bool read_news() {
    std::string text = text_from(bytes_read_ - last_line_.size());
    const bool is_anew = !text.starts_with(last_line_);
    if (is_anew) {
      start();
      text = text_from(0);
    }
    const std::size_t known = history_.records.size();
    std::size_t begin = last_line_.size();
    for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
      auto record = detail::population_record(std::string_view(text).substr(begin, end - begin));
      if (!record) break;
      history_.records.push_back(std::move(*record));
      bytes_read_ += end + 1 - begin;
      last_line_ = text.substr(begin, end + 1 - begin);
    }
    return is_anew || history_.records.size() > known;
  }

  std::string text_from(std::size_t place) const {
    std::ifstream file(folder_ / "population.jsonl", std::ios::binary);
    file.seekg(static_cast<std::streamoff>(place));
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::filesystem::path folder_;
  PopulationScore score_;
  detail::PopulationHistory history_;
  std::size_t bytes_read_ = 0;
  std::string last_line_ = {};  // that was read
};

PopulationPicture::PopulationPicture(std::filesystem::path folder, PopulationScore score)
    : painter_(std::make_unique<Painter>(std::move(folder), std::move(score))) {}

PopulationPicture::~PopulationPicture() = default;

void PopulationPicture::on(const Event& event) {
  if (std::holds_alternative<event::RunStarted>(event)) painter_->start();
  if (std::holds_alternative<event::GenerationEnded>(event)) painter_->paint();
  if (std::holds_alternative<event::RunEnded>(event)) painter_->finish();
}

}  // namespace tutti
