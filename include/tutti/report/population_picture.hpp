// How a population is getting on, as a picture: population.svg in its folder, drawn from its population.jsonl.
//
//   events.add(std::make_shared<PopulationPicture>("runs/search", PopulationScore{.name = "validation accuracy"}));
//
// Panels below each other show the scores, each hyper-parameter, and who went on from whom, by generation. The line of
// the best member's ancestors is bold.
//
// Drawn anew whenever a generation ended, and at the end. A run without generations gets no picture.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include <tutti/base/events.hpp>

namespace tutti {

// What tells the best.
struct PopulationScore {
  std::string name = "score";
  bool higher_is_better = true;
};

// A write that fails is an Error that names the file and the reason.
class PopulationPicture : public Observer {
 public:
  explicit PopulationPicture(std::filesystem::path folder, PopulationScore score = {});
  ~PopulationPicture() override;

  void on(const Event& event) override;

 private:
  class Painter;

  std::unique_ptr<Painter> painter_;
};

}  // namespace tutti
