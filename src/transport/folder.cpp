// Where ranks that share nothing but a folder meet.
//
// Rank 0 locks the folder, makes a fresh subfolder for this session, and calls: a file says which it is. Whoever hears
// the call says in that subfolder that it is there, which a process of an earlier job, killed long ago, cannot have
// done. When all are there, rank 0 welcomes them by name. Where they cannot come together, it says why, and all hear
// the same.
//
//   <folder>/tutti.lock              locked by rank 0 until it leaves
//   <folder>/tutti.call              the session's number, until all have met
//   <folder>/tutti.session-<number>/ the session
//     here-<rank>-<number>           locked by a rank until it leaves; the number is one that it drew
//     welcome, refusal               what rank 0 says to all
//     <from>-<to>-<number>           frames (folder_link.hpp)
#include <tutti/transport/folder.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "folder_link.hpp"
#include "frame.hpp"

namespace tutti {
namespace folder {
namespace {

using namespace std::chrono_literals;

constexpr const char* kLock = "tutti.lock";
constexpr const char* kCall = "tutti.call";
constexpr std::string_view kSession = "tutti.session-";
constexpr const char* kWelcome = "welcome";
constexpr const char* kRefusal = "refusal";
constexpr std::string_view kHere = "here-";

// How long rank 0 waits, once ranks disagree, for the others to come as well: then all are told who brought what.
constexpr Duration kOthersCome = 2s;
// And how long until those it refused have heard why.
constexpr Duration kIsHeard = 2s;

constexpr std::size_t kDigits = 16;

std::string draw_number() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

Path session_path(const Path& folder, std::string_view number) {
  return folder / fmt::format("{}{}", kSession, number);
}

// Exactly, for such folders are removed with all that is in them.
bool is_session(std::string_view name) {
  return name.starts_with(kSession) && name.size() == kSession.size() + kDigits &&
         name.find_first_not_of("0123456789abcdef", kSession.size()) == std::string_view::npos;
}

std::string boot_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot.empty() ? draw_number() : boot;  // then nobody is near
}

// A process that came: what its file says and is named.
struct Attendant {
  Rank rank;
  std::string number;  // that it drew
  int size = 0;        // that it takes the world to have
  std::string boot;    // the same where two processes run on one kernel

  std::string file_name() const { return fmt::format("{}{}-{}", kHere, rank.value, number); }
  std::string text() const { return fmt::format("{} {}\n", size, boot); }
};

// None where the file is none of these, or has gone meanwhile.
std::optional<Attendant> read_attendant(const Path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kHere) || name.ends_with(".new")) return std::nullopt;
  Attendant found;
  const char* end = name.data() + name.size();
  const auto [rest, problem] = std::from_chars(name.data() + kHere.size(), end, found.rank.value);
  if (problem != std::errc{} || rest == end || *rest != '-') return std::nullopt;
  found.number = std::string(rest + 1, end);
  const std::optional<std::string> text = read_file(path);
  if (!text) return std::nullopt;
  std::istringstream words(*text);
  words >> found.size >> found.boot;
  return found;
}

// Those who are there, in the order of their ranks, without those of this host that have died.
std::vector<Attendant> attendants(const Path& session, const std::string& own_boot) {
  std::vector<Attendant> all;
  for (const std::string& name : names_in(session)) {
    const std::optional<Attendant> found = read_attendant(session / name);
    if (found && presence_of(session / name, found->boot == own_boot) == Presence::locked) all.push_back(*found);
  }
  std::ranges::sort(all, {}, &Attendant::rank);
  return all;
}

// This process's part in a session. Who leaves it last removes it.
class Attendance {
 public:
  Attendance(Path session, const Attendant& self)
      : session_(std::move(session)),
        boot_(self.boot),
        here_(LockedFile::publish(session_ / self.file_name(), self.text())) {}
  Attendance(const Attendance&) = delete;
  Attendance& operator=(const Attendance&) = delete;
  ~Attendance() {
    here_.reset();
    if (must_go_ || is_empty()) remove_with_contents(session_);
  }

  const Path& session() const { return session_; }
  // Nobody has anything more to do there.
  void end_session() { must_go_ = true; }

 private:
  bool is_empty() const noexcept {
    try {
      return attendants(session_, boot_).empty();
    } catch (const std::exception&) {
      return false;
    }
  }

  const Path session_;
  const std::string boot_;
  std::optional<LockedFile> here_;
  bool must_go_ = false;
};

// What this process has in the folder, until the transport goes.
struct Stay {
  // The last to leave removes the folder, where it is the job's.
  struct Folder {
    Path path;
    bool goes = false;

    ~Folder() {
      if (goes) ::rmdir(path.c_str());
    }
  };

  Folder folder;
  std::optional<LockedFile> lock;  // rank 0's
  std::optional<LockedFile> call;  // rank 0's, until all have met
  std::optional<Attendance> attendance;
  std::vector<Attendant> members;  // by rank
};

[[noreturn]] void throw_refusal(const Failure& failure) {
  if (failure.kind == FailureKind::disagreement) throw UsageError(failure.message);
  throw PeerError(failure);
}

class Meeting {
 public:
  Meeting(const JoinFolderOptions& options, Deadline deadline)
      : self_{.rank = options.rank, .number = draw_number(), .size = options.size, .boot = boot_identity()},
        is_own_folder_(options.is_own_folder),
        on_call_(options.on_call),
        deadline_(deadline) {
    // The program may change its working folder.
    stay_->folder.path = std::filesystem::absolute(options.folder);
  }

  std::shared_ptr<Stay> hold() {
    if (self_.rank == Rank{0}) {
      open();
      gather();
    } else {
      attend();
    }
    return stay_;
  }

 private:
  const Path& folder() const { return stay_->folder.path; }
  const Path& session() const { return stay_->attendance->session(); }

  // --- rank 0 ---

  void open() {
    while (!stay_->lock) {
      const bool was_made = ::mkdir(folder().c_str(), 0777) == 0;
      stay_->folder.goes = was_made || is_own_folder_;
      if (!was_made && errno != EEXIST) throw system_error("make", folder(), errno);
      try {
        stay_->lock = LockedFile::take(folder() / kLock);
      } catch (const Error&) {
        if (look_afresh(folder())) throw;
        continue;  // the last of an earlier job took the folder along just now
      }
      if (!stay_->lock) {
        throw UsageError(
            fmt::format("the folder {} is in use: rank 0 of another job has {} locked", folder().string(), kLock));
      }
    }
    ::unlink((folder() / kCall).c_str());
    remove_leftovers();
    const std::string number = draw_number();
    const Path made = session_path(folder(), number);
    if (::mkdir(made.c_str(), 0777) != 0) throw system_error("make", made, errno);
    stay_->attendance.emplace(made, self_);
    stay_->call.emplace(LockedFile::publish(folder() / kCall, number));
    if (on_call_) on_call_();
  }

  // What killed jobs left. Where somebody is still in a session, it is let be, and that one removes it.
  void remove_leftovers() {
    for (const std::string& name : names_in(folder())) {
      if (is_session(name) && !is_used(folder() / name)) remove_with_contents(folder() / name);
    }
  }

  static bool is_used(const Path& session) {
    return std::ranges::any_of(names_in(session), [&](const std::string& name) {
      return name.starts_with(kHere) && presence_of(session / name, /*is_near=*/true) == Presence::locked;
    });
  }

  void gather() {
    std::optional<Deadline> others_come;
    for (Pause pause(deadline_);; pause.rest()) {
      const std::vector<Attendant> here = attendants(session(), self_.boot);
      if (std::ranges::find(here, self_.number, &Attendant::number) == here.end())
        throw Error(fmt::format("{} was removed while the ranks met there", session().string()));
      if (const std::optional<std::string> difference = find_difference(here)) {
        if (!others_come) others_come = Deadline::after(std::min(kOthersCome, deadline_.remaining()));
        if (have_all_come(here) || others_come->passed()) refuse({FailureKind::disagreement, {}, *difference});
      } else if (have_all_come(here)) {
        return welcome(here);
      } else if (deadline_.passed()) {
        refuse(late(here));
      }
    }
  }

  // What is wrong with those who came, if anything.
  static std::optional<std::string> find_difference(const std::vector<Attendant>& here) {
    const auto twice = std::ranges::adjacent_find(here, {}, &Attendant::rank);
    if (twice != here.end())
      return fmt::format("two processes came as {}: two jobs may have been started in one folder",
                         to_string(twice->rank));
    if (std::ranges::adjacent_find(here, std::ranges::not_equal_to{}, &Attendant::size) == here.end())
      return std::nullopt;
    std::map<int, std::vector<Rank>> ranks_of;
    for (const Attendant& one : here) ranks_of[one.size].push_back(one.rank);
    std::vector<std::string> parts;
    for (const auto& [size, ranks] : ranks_of) parts.push_back(fmt::format("{} on {}", size, to_string(ranks)));
    return fmt::format("the ranks disagree on how many they are: {}", fmt::join(parts, ", "));
  }

  // All that anybody expects.
  static bool have_all_come(const std::vector<Attendant>& here) {
    const int most = std::ranges::max(here, {}, &Attendant::size).size;
    return static_cast<int>(here.size()) >= most;
  }

  void welcome(const std::vector<Attendant>& here) {
    std::string text = fmt::format("{}\n", stay_->folder.goes ? 1 : 0);
    for (const Attendant& one : here) text += fmt::format("{} {}\n", one.number, one.boot);
    publish_file(session() / kWelcome, text);
    stay_->call.reset();
    stay_->members = here;
    remove_leftovers();  // again: one of those who came may have waited in a session of a killed job
  }

  // Says so to all who came, and waits for a moment until they have heard it.
  [[noreturn]] void refuse(const Failure& failure) {
    stay_->call.reset();
    stay_->attendance->end_session();
    processes::Packer packed;
    packed.failure(failure);
    publish_file(session() / kRefusal, packed.bytes());
    const Deadline is_heard = Deadline::after(kIsHeard);
    for (Pause pause(is_heard); attendants(session(), self_.boot).size() > 1 && !is_heard.passed(); pause.rest()) {
    }
    throw_refusal(failure);
  }

  // --- the others ---

  void attend() {
    for (Pause pause(deadline_);; pause.rest()) {
      hear_call();
      if (stay_->attendance && look_afresh(session())) {
        if (const auto refusal = read_file(session() / kRefusal))
          throw_refusal(processes::Unpacker(std::as_bytes(std::span(*refusal))).failure());
        if (const auto welcome = read_file(session() / kWelcome); welcome && is_welcome(*welcome)) return;
      }
      if (deadline_.passed()) throw PeerError(late_for_attendant());
    }
  }

  // Comes where rank 0 calls; that may be another one than the one that called before, which has ended then.
  void hear_call() {
    if (!look_afresh(folder())) return;
    const std::optional<std::string> number = read_file(folder() / kCall);
    if (!number) return;
    const Path called = session_path(folder(), *number);
    if (!is_session(called.filename().string())) return;
    if (stay_->attendance && session() == called) return;
    stay_->attendance.reset();
    try {
      stay_->attendance.emplace(called, self_);
    } catch (const Error&) {
      if (look_afresh(called)) throw;
      // It was the call of a job that has ended.
    }
  }

  // Whoever is not named came too late, to another job's session: it waits for the next call.
  bool is_welcome(const std::string& text) {
    std::istringstream words(text);
    int was_made = 0;
    words >> was_made;
    std::vector<Attendant> members;
    for (Attendant member; words >> member.number >> member.boot; members.push_back(member)) {
      member.rank = Rank{static_cast<int>(members.size())};
    }
    const auto place = static_cast<std::size_t>(self_.rank.value);
    if (members.size() <= place || members[place].number != self_.number) return false;
    stay_->folder.goes = was_made != 0;
    stay_->members = std::move(members);
    return true;
  }

  Failure late_for_attendant() const {
    std::vector<Attendant> here;
    if (stay_->attendance) here = attendants(session(), self_.boot);
    if (!here.empty() && here.front().rank == Rank{0}) return late(here);
    // Who else has not come, nobody knows: the others come when rank 0 calls.
    const bool is_used = presence_of(folder() / kLock, /*is_near=*/true) == Presence::locked;
    return {FailureKind::late,
            {Rank{0}},
            fmt::format("rank 0 did not come to the folder {} in time{}", folder().string(),
                        is_used ? " (another job is at work there)" : "")};
  }

  // --- both ---

  Failure late(const std::vector<Attendant>& here) const {
    std::vector<Rank> missing = all_ranks_but(self_.rank, self_.size);
    std::erase_if(missing, [&](Rank rank) { return std::ranges::find(here, rank, &Attendant::rank) != here.end(); });
    if (missing.empty()) missing = {Rank{0}};  // all are there, and it has not said so
    return {FailureKind::late, missing,
            fmt::format("{} did not come to the folder {} in time", to_string(missing), folder().string())};
  }

  // Between two looks: ever longer.
  class Pause {
   public:
    explicit Pause(Deadline deadline) : deadline_(deadline) {}
    void rest() {
      std::this_thread::sleep_for(std::min(next_, deadline_.remaining()));
      next_ = std::min<Duration>(2 * next_, 10ms);
    }

   private:
    const Deadline deadline_;
    Duration next_ = 1ms;
  };

  const Attendant self_;
  const bool is_own_folder_;
  const std::function<void()> on_call_;
  const Deadline deadline_;
  const std::shared_ptr<Stay> stay_ = std::make_shared<Stay>();
};

std::vector<std::unique_ptr<Link>> make_links(const std::shared_ptr<Stay>& stay, Rank rank) {
  const std::vector<Attendant>& members = stay->members;
  const Path& session = stay->attendance->session();
  const std::string& own_boot = members[static_cast<std::size_t>(rank.value)].boot;
  const auto poller = std::make_shared<FolderPoller>(session, stay);
  std::vector<std::unique_ptr<Link>> links(members.size());
  for (const Attendant& member : members) {
    if (member.rank == rank) continue;
    links[static_cast<std::size_t>(member.rank.value)] =
        std::make_unique<FolderLink>(poller, FolderLinkOptions{.rank = rank,
                                                               .peer = member.rank,
                                                               .peer_file = session / member.file_name(),
                                                               .is_near = member.boot == own_boot});
  }
  return links;
}

void check(const JoinFolderOptions& options) {
  if (options.folder.empty()) throw UsageError("join_folder needs the folder that the ranks share; it was left empty");
  if (options.size < 1) throw UsageError(fmt::format("a world needs at least 1 rank, found {}", options.size));
  if (options.rank.value < 0 || options.rank.value >= options.size) {
    throw UsageError(fmt::format("there is no {}: the world has {} ranks", to_string(options.rank), options.size));
  }
  if (options.heartbeat <= Duration::zero()) throw UsageError("the heartbeat must be longer than nothing");
}

}  // namespace
}  // namespace folder

std::unique_ptr<Transport> join_folder(const JoinFolderOptions& options) {
  folder::check(options);
  const Deadline deadline = Deadline::after(options.deadline);
  std::vector<std::unique_ptr<Link>> links(1);
  if (options.size > 1) links = folder::make_links(folder::Meeting(options, deadline).hold(), options.rank);
  return join_processes(
      {.rank = options.rank, .wires = std::move(links), .heartbeat = options.heartbeat, .shared_memory = false},
      deadline);
}

}  // namespace tutti
