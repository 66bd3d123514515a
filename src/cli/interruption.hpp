// Ctrl-C and its like, as a question that can be asked between two steps. A second one of the same kind ends the
// program at once.
//
//   Interruption interruption;
//   while (!interruption.is_wanted()) step();
#pragma once

namespace tutti::cli {

// One at a time in a program. What it was told to ignore, as nohup does, stays ignored.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  bool is_wanted() const { return signal() != 0; }
  // The first that came; 0 where none did.
  int signal() const;
};

}  // namespace tutti::cli
