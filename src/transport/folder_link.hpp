// A link through a folder: a frame is a file there, from when it is written until it was read and used.
//
//   auto poller = std::make_shared<FolderPoller>(folder);
//   FolderLink link(poller, {.rank = Rank{0}, .peer = Rank{1}, .peer_file = folder / "here-1", .is_near = true});
//
// Files are named <from>-<to>-<number>, so that a reader looks for exactly the next one. One that is empty says that
// nothing more will come. The writer has no more than kMostFrames and kMostBytes in the folder; that the reader deletes
// what it used makes room.
//
// Nobody is told when a file comes, least of all by another host: a thread of the process looks for all of its links.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <tutti/base/rank.hpp>
#include <tutti/transport/link.hpp>

#include "doorbell.hpp"
#include "folder_files.hpp"

namespace tutti::folder {

class FolderLink;

// Looks into the folder for all links of one process: again and again while something happens, and then ever less
// often, down to once in two milliseconds.
class FolderPoller {
 public:
  // `keep` stays until the thread has ended.
  explicit FolderPoller(Path folder, std::shared_ptr<void> keep = nullptr);
  ~FolderPoller();
  FolderPoller(const FolderPoller&) = delete;
  FolderPoller& operator=(const FolderPoller&) = delete;

  const Path& folder() const { return folder_; }
  void add(FolderLink& link);
  void remove(FolderLink& link);
  // Something is likely to happen soon.
  void wake() noexcept;

 private:
  void poll();
  bool look();
  void look_for_peers();

  const std::shared_ptr<void> keep_;
  const Path folder_;
  std::mutex mutex_;  // held while the links are looked at
  std::vector<FolderLink*> links_;
  Deadline next_look_for_peers_ = Deadline::after(Duration::zero());
  Doorbell bell_;
  std::atomic<bool> woken_{false};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

struct FolderLinkOptions {
  Rank rank = {};
  Rank peer = {};
  Path peer_file = {};   // is there as long as the peer is
  bool is_near = false;  // the peer is on this host: where its file is not locked any more, it has died
};

class FolderLink final : public Link {
 public:
  static constexpr std::size_t kMostFrames = 64;
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  FolderLink(std::shared_ptr<FolderPoller> poller, FolderLinkOptions options);
  ~FolderLink() override;

  void start(std::function<void()> ring) override;
  std::size_t most_body_bytes() const override { return kMostBodyBytes; }
  bool write(std::span<const std::byte> head, std::span<const std::byte> body) override;
  bool stirred() const noexcept override;
  FrameBytes front() override;
  void pop() override;
  std::optional<std::string> closed() override;
  void close() noexcept override;

 private:
  friend class FolderPoller;

  // Large enough that the system's calls for a file do not count for much, and small enough that reader and writer work
  // at the same time.
  static constexpr std::size_t kMostBodyBytes = kMostBytes / 8;

  // A head, and a body that is aligned as Link wants it.
  class Kept {
   public:
    explicit Kept(std::size_t bytes);

    std::byte* data() { return memory_.get() + kBodyAlignment - kHeadBytes; }
    FrameBytes bytes() const {
      const std::byte* body = memory_.get() + kBodyAlignment;
      return {{body - kHeadBytes, kHeadBytes}, {body, bytes_ - kHeadBytes}};
    }

   private:
    struct Free {
      void operator()(std::byte* memory) const;
    };

    std::size_t bytes_;
    std::unique_ptr<std::byte, Free> memory_;
  };

  // What the poller calls, from its thread. They say whether there was anything.
  void look_for_peer();
  bool look_for_frames(int folder);
  bool look_for_room(int folder);
  void end(std::string why);

  bool is_over() const { return is_closed_.load() || has_ended_.load(); }
  bool has_room(std::size_t bytes);
  std::optional<Kept> read(int folder, const std::string& name);
  std::string incoming_name(std::uint64_t number) const;
  std::string outgoing_name(std::uint64_t number) const;

  const std::shared_ptr<FolderPoller> poller_;
  const FolderLinkOptions options_;
  std::function<void()> ring_;
  std::atomic<bool> is_closed_{false};  // by us

  std::atomic<std::uint64_t> written_{0};    // frames
  std::atomic<std::uint64_t> taken_{0};      // of those
  std::atomic<bool> wants_room_{false};      // a frame found none
  std::deque<std::size_t> sizes_under_way_;  // of the frames that were not taken, as far as the writer knows
  std::size_t bytes_under_way_ = 0;

  std::optional<std::string> peer_is_gone_;  // what the poller found out
  std::uint64_t next_ = 0;                   // frame to come
  std::atomic<std::uint64_t> arrived_{0};
  std::atomic<std::uint64_t> popped_{0};
  std::atomic<bool> has_ended_{false};
  std::atomic<bool> end_was_told_{false};
  std::mutex mutex_;  // guards the rest
  std::deque<Kept> inbox_;
  std::optional<std::string> why_ended_;
};

}  // namespace tutti::folder
