#include "folder_link.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <new>
#include <utility>

#include <fmt/format.h>
#include <tutti/base/assert.hpp>

namespace tutti::folder {
namespace {

using namespace std::chrono_literals;

// How often the poller looks without sleeping in between, after something happened.
constexpr int kLooksAwake = 50;
constexpr Duration kShortestNap = 20us;
constexpr Duration kLongestNap = 2ms;
// How often it looks whether the peers are still there.
constexpr Duration kLookForPeers = 50ms;

class OpenFile {
 public:
  explicit OpenFile(int file) : file_(file) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (file_ >= 0) ::close(file_);
  }
  int get() const { return file_; }

 private:
  int file_;
};

}  // namespace

// --- the poller ---

FolderPoller::FolderPoller(Path folder, std::shared_ptr<void> keep)
    : keep_(std::move(keep)), folder_(std::move(folder)), thread_([this] { poll(); }) {}

FolderPoller::~FolderPoller() {
  stopping_.store(true);
  bell_.ring();
  thread_.join();
}

void FolderPoller::add(FolderLink& link) {
  const std::lock_guard lock(mutex_);
  links_.push_back(&link);
}

void FolderPoller::remove(FolderLink& link) {
  const std::lock_guard lock(mutex_);
  std::erase(links_, &link);
}

void FolderPoller::wake() noexcept {
  woken_.store(true);
  bell_.ring();
}

void FolderPoller::poll() {
  int looks = 0;
  Duration nap = kShortestNap;
  while (!stopping_.load()) {
    if (look() || woken_.exchange(false)) {
      looks = 0;
      nap = kShortestNap;
    }
    if (++looks < kLooksAwake) {
      yield_cpu();
      continue;
    }
    bell_.wait([&] { return woken_.load() || stopping_.load(); }, Deadline::after(nap), {});
    nap = std::min(2 * nap, kLongestNap);
  }
}

bool FolderPoller::look() {
  const std::lock_guard lock(mutex_);
  if (links_.empty()) return false;
  // First, so that all is found that a peer wrote before it went.
  look_for_peers();
  const OpenFile opened(open_folder(folder_));
  if (opened.get() < 0) {
    const Error problem = system_error("read", folder_, errno);
    for (FolderLink* link : links_) link->end(fmt::format("cannot be reached: {}", problem.what()));
    return false;
  }
  bool found = false;
  for (FolderLink* link : links_) {
    found |= link->look_for_frames(opened.get());
    found |= link->look_for_room(opened.get());
  }
  return found;
}

void FolderPoller::look_for_peers() {
  if (!next_look_for_peers_.passed()) return;
  next_look_for_peers_ = Deadline::after(kLookForPeers);
  for (FolderLink* link : links_) link->look_for_peer();
}

// --- the link ---

FolderLink::FolderLink(std::shared_ptr<FolderPoller> poller, FolderLinkOptions options)
    : poller_(std::move(poller)), options_(std::move(options)) {}

FolderLink::~FolderLink() {
  poller_->remove(*this);
  close();
}

void FolderLink::start(std::function<void()> ring) {
  ring_ = std::move(ring);
  poller_->add(*this);
}

std::string FolderLink::incoming_name(std::uint64_t number) const {
  return fmt::format("{}-{}-{}", options_.peer.value, options_.rank.value, number);
}

std::string FolderLink::outgoing_name(std::uint64_t number) const {
  return fmt::format("{}-{}-{}", options_.rank.value, options_.peer.value, number);
}

void FolderLink::end(std::string why) {
  {
    const std::lock_guard lock(mutex_);
    if (why_ended_) return;
    why_ended_ = std::move(why);
    has_ended_.store(true);
  }
  if (ring_) ring_();
}

// --- writing ---

bool FolderLink::has_room(std::size_t bytes) {
  const std::uint64_t taken = taken_.load();
  while (sizes_under_way_.size() > written_.load() - taken) {
    bytes_under_way_ -= sizes_under_way_.front();
    sizes_under_way_.pop_front();
  }
  return sizes_under_way_.size() < kMostFrames && bytes_under_way_ + bytes <= kMostBytes;
}

bool FolderLink::write(std::span<const std::byte> head, std::span<const std::byte> body) {
  TUTTI_ASSERT_EQ(head.size(), kHeadBytes);
  TUTTI_ASSERT_LE(body.size(), kMostBodyBytes);
  if (is_over()) return true;  // it would not arrive
  const std::size_t bytes = head.size() + body.size();
  if (!has_room(bytes)) {
    wants_room_.store(true);
    poller_->wake();
    // What was taken before the poller knew that we want it, it does not ring for.
    if (!has_room(bytes)) return false;
  }
  wants_room_.store(false);
  try {
    publish_file(poller_->folder() / outgoing_name(written_.load()), head, body);
  } catch (const Error& error) {
    end(fmt::format("cannot be reached: {}", error.what()));
    return true;
  }
  sizes_under_way_.push_back(bytes);
  bytes_under_way_ += bytes;
  written_.fetch_add(1);
  poller_->wake();  // there may be an answer soon
  return true;
}

// The reader takes them in their order.
bool FolderLink::look_for_room(int folder) {
  if (is_over() || !wants_room_.load()) return false;
  const std::uint64_t before = taken_.load();
  std::uint64_t taken = before;
  while (taken < written_.load() && ::faccessat(folder, outgoing_name(taken).c_str(), F_OK, 0) != 0) {
    if (!is_gone(errno)) break;
    ++taken;
  }
  if (taken == before) return false;
  taken_.store(taken);
  ring_();
  return true;
}

void FolderLink::close() noexcept {
  if (is_closed_.exchange(true)) return;
  try {
    publish_file(poller_->folder() / outgoing_name(written_.load()), "");
  } catch (const std::exception&) {
    // Then the peer finds out when our own file is gone, or by the heartbeat.
  }
}

// --- reading ---

FolderLink::Kept::Kept(std::size_t bytes)
    : bytes_(bytes),
      memory_(static_cast<std::byte*>(
          ::operator new (bytes + kBodyAlignment - kHeadBytes, std::align_val_t{kBodyAlignment}))) {}

void FolderLink::Kept::Free::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{kBodyAlignment});
}

void FolderLink::look_for_peer() {
  if (is_over() || peer_is_gone_) return;
  switch (presence_of(options_.peer_file, options_.is_near)) {
    case Presence::absent: peer_is_gone_ = "has left"; break;
    case Presence::unlocked: peer_is_gone_ = "has died: its process has ended"; break;
    case Presence::locked: break;
  }
}

bool FolderLink::look_for_frames(int folder) {
  if (is_over()) return false;
  bool found = false;
  try {
    while (std::optional<Kept> frame = read(folder, incoming_name(next_))) {
      {
        const std::lock_guard lock(mutex_);
        inbox_.push_back(std::move(*frame));
      }
      ++next_;
      arrived_.fetch_add(1);
      ring_();
      found = true;
    }
  } catch (const Error& error) {
    end(fmt::format("cannot be heard: {}", error.what()));
  }
  if (peer_is_gone_) end(*peer_is_gone_);
  return found;
}

// None where it has not come; or it says that nothing more will.
std::optional<FolderLink::Kept> FolderLink::read(int folder, const std::string& name) {
  const OpenFile file(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 && is_gone(errno)) return std::nullopt;
  struct stat about {};
  if (file.get() < 0 || ::fstat(file.get(), &about) != 0) throw system_error("read", poller_->folder() / name, errno);
  const auto bytes = static_cast<std::size_t>(about.st_size);
  if (bytes == 0) {
    end("has closed its link: it has left, or gave this rank up");
    return std::nullopt;
  }
  if (bytes < kHeadBytes || bytes > kHeadBytes + kMostBodyBytes) {
    throw Error(fmt::format("{} has {} bytes, which no frame has", (poller_->folder() / name).string(), bytes));
  }
  Kept frame(bytes);
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t count = ::read(file.get(), frame.data() + done, bytes - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw system_error("read", poller_->folder() / name, errno);
    if (count == 0) throw Error(fmt::format("{} was cut off", (poller_->folder() / name).string()));
    done += static_cast<std::size_t>(count);
  }
  return frame;
}

bool FolderLink::stirred() const noexcept {
  if (is_closed_.load()) return false;
  return arrived_.load() != popped_.load() || (has_ended_.load() && !end_was_told_.load());
}

FrameBytes FolderLink::front() {
  const std::lock_guard lock(mutex_);
  return inbox_.empty() ? FrameBytes{} : inbox_.front().bytes();
}

void FolderLink::pop() {
  ::unlink((poller_->folder() / incoming_name(popped_.load())).c_str());
  const std::lock_guard lock(mutex_);
  inbox_.pop_front();
  popped_.fetch_add(1);
}

std::optional<std::string> FolderLink::closed() {
  const std::lock_guard lock(mutex_);
  if (!why_ended_ || !inbox_.empty()) return std::nullopt;
  end_was_told_.store(true);
  return why_ended_;
}

}  // namespace tutti::folder
