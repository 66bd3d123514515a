// A file that is written from its beginning to its end; what goes wrong is an Error that names the file and the reason.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

namespace tutti::detail {

class OutputFile {
 public:
  enum class Mode {
    replace,     // what was there before
    append,      // to it
    create_new,  // or fail where something is there
  };

  OutputFile(std::filesystem::path path, Mode mode);

  const std::filesystem::path& path() const { return path_; }

  void write(std::string_view bytes);
  void flush();  // others see it
  void close();

 private:
  [[noreturn]] void fail(int problem) const;

  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

// Makes the folder and those around it, where they are not there.
void make_folder(const std::filesystem::path& folder);

}  // namespace tutti::detail
