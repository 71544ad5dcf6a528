// heddle/nccl/channel.hpp: one NCCL communicator: start, watch, end (not run on a GPU).
#pragma once

#include <heddle/comm/blocks.hpp>
#include <heddle/comm/call_mark.hpp>
#include <heddle/comm/flight_recorder.hpp>
#include <heddle/comm/options.hpp>
#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/core/type_name.hpp>
#include <heddle/nccl/aborts.hpp>
#include <heddle/nccl/types.hpp>
#include <heddle/rendezvous/control_state.hpp>
#include <heddle/rendezvous/rendezvous.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0 {

/// Over which network cards NCCL talks between nodes.
enum class nccl_network : unsigned char {
  automatic,  ///< the best that all processes have in common, or what `NCCL_NET` says
  rdma,       ///< InfiniBand or RoCE
  sockets,    ///< TCP, which works between any cards
};

/// How calls of an `nccl_communicator` behave. A policy: its members are constants of the transport.
struct nccl_settings {
  /// True: a call returns when its result is there. False: when the stream has the work; what follows on the same
  /// stream sees the result, the host does after `wait()`.
  bool complete = false;
  /// True: NCCL's own calls may block, which saves a little in each and has no timeout while communicators connect.
  bool blocking = false;
  /// Set for each communicator when it connects; the environment of the process is left alone.
  nccl_network network = nccl_network::automatic;
  /// True: trainers keep gradients and weights that are summed and gathered in memory that is registered with the communicators as symmetric windows, once.
  /// Needs as much memory, rounded up to NCCL's granularity; under `zero<2>` and `zero<3>` whole ones of stages of several sizes have memory for each size.
  bool windows = false;
};

namespace detail {

inline std::string nccl_version_text(int code) {
  const int big = code >= 10000 ? 10000 : 1000;
  return text_of({code / big, '.', code % big / 100, '.', code % 100});
}

/// A library that is older than the header does not know all that was compiled in.
inline void require_nccl_version(int header = NCCL_VERSION_CODE) {
  int library = 0;
  if (ncclGetVersion(&library) == ncclSuccess && library >= header) return;
  throw comm_error(text_of({"heddle: the NCCL library is version ", nccl_version_text(library),
                            ", older than the header ", nccl_version_text(header), " this program was compiled with"}));
}

class nccl_channel;

/// What belongs to a communicator of NCCL's and is given back by calls of its own before that one ends. Nothing is given back to a communicator that
/// is aborted.
struct nccl_attachment {
  nccl_attachment() = default;
  nccl_attachment(const nccl_attachment&) = delete;
  nccl_attachment& operator=(const nccl_attachment&) = delete;
  virtual ~nccl_attachment() = default;
  virtual void give_back(nccl_channel& channel) = 0;
};

/// Memory that is registered with a communicator, on this rank.
struct nccl_registered {
  const std::byte* begin;
  std::size_t bytes;
  void* window;             // an `ncclWindow_t`, where NCCL has them
  std::int64_t number = 0;  // which of the communicator's windows: the same on all ranks
};

/// The groups of NCCL's calls that this thread has open: NCCL keeps them per thread, so this does, too. A failure closes
/// them before it aborts a communicator, since NCCL forgets what is aborted inside a group that fails.
struct nccl_open_groups {
  static ncclResult_t start() {
    const ncclResult_t result = ncclGroupStart();
    if (result == ncclSuccess) ++depth();
    return result;
  }
  /// Success where a failure has closed the group already: whoever it hits learns it from its next call.
  static ncclResult_t end() {
    if (depth() == 0) return ncclSuccess;
    --depth();
    return ncclGroupEnd();
  }
  static void close_all() noexcept {
    while (depth() > 0) static_cast<void>(end());
  }

 private:
  static int& depth() noexcept {
    thread_local int open = 0;
    return open;
  }
};

/// What all communicators of a rank share.
struct nccl_site {
  nccl_site() = default;
  nccl_site(const nccl_site&) = delete;
  nccl_site& operator=(const nccl_site&) = delete;
  ~nccl_site() {
    constexpr std::chrono::milliseconds longest(30'000);
    const std::chrono::milliseconds asked = options.timeout;
    if (!aborts.ended(asked.count() > 0 ? (std::min)(asked, longest) : longest)) {
      // A kernel that is not NCCL's waits for ranks that have failed, or a graph outlives its communicators. To free memory would be to wait for it, too: it ends with the process.
      static_cast<void>(new (std::nothrow) std::vector<std::shared_ptr<void>>(std::move(written_late)));
      return;
    }
    for (void* memory : scratch) static_cast<void>(cudaFree(memory));
    for (void* memory : left) static_cast<void>(ncclMemFree(memory));
  }
  launch_options options;
  nccl_settings settings;
  std::shared_ptr<rendezvous> meeting;  // none for communicators that somebody else has made
  int rank = 0;                         // among all that were launched
  std::vector<nccl_channel*> open;
  std::map<std::string, int> made;
  std::map<std::string, std::shared_ptr<control_state>> controls;  // by group: those of one group share one order
  std::string failure;                                             // why every call fails from now on
  bool reported = false;
  int fused = 0;               // how many communicators are in an `nccl_group` that is open
  std::vector<void*> scratch;  // on the GPU; kept to the end: freeing memory waits for all that runs there
  std::size_t scratch_bytes = 0;
  std::vector<void*> left;  // windows that were in use when an exception ended them; the communicators end before
  std::unique_ptr<flight_recorder> flight;  // of a launch that keeps flight files
  struct kept_call {
    flight_call* call;
    cudaStream_t stream;
  };
  std::vector<kept_call> kept;                      // in the flight file, not yet found complete
  std::vector<std::shared_ptr<void>> written_late;  // what threads of NCCL may still write to after an error
  nccl_aborts aborts;
};

/// Owns or borrows an `ncclComm_t`. Used by its rank's thread only.
class nccl_channel {
 public:
  nccl_channel(std::shared_ptr<nccl_site> site, std::string label, std::vector<int> members, int index)
      : nccl_channel(std::move(site), std::move(label), std::move(members), index, nullptr, true) {}
  nccl_channel(std::shared_ptr<nccl_site> site, std::string label, std::vector<int> members, int index, ncclComm_t comm,
               bool owned)
      : site_(std::move(site)),
        label_(std::move(label)),
        members_(std::move(members)),
        index_(index),
        comm_(comm),
        owned_(owned),
        exceptions_(std::uncaught_exceptions()) {
    site_->open.push_back(this);
  }
  nccl_channel(const nccl_channel&) = delete;
  nccl_channel& operator=(const nccl_channel&) = delete;
  ~nccl_channel() {
    try {
      close();
    } catch (...) {  // it has been aborted
    }
    site_->open.erase(std::find(site_->open.begin(), site_->open.end(), this));
  }

  int rank() const noexcept { return index_; }
  int size() const noexcept { return static_cast<int>(members_.size()); }
  int world_rank(int r) const { return members_[static_cast<std::size_t>(r)]; }
  const std::vector<int>& members() const noexcept { return members_; }
  const std::string& label() const noexcept { return label_; }
  nccl_site& site() noexcept { return *site_; }
  const std::shared_ptr<nccl_site>& shared_site() const noexcept { return site_; }
  comm_counters& counters() noexcept { return counters_; }
  const comm_counters& counters() const noexcept { return counters_; }

  /// The communicator, made with the other members when it is first needed.
  ncclComm_t connected() {
    if (!site_->failure.empty()) throw aborted_error(site_->failure);
    if (site_->fused > 0 && fused_ == 0) refuse("it is not one of the open group of calls: name it in the nccl_group");
    if (comm_ == nullptr) connect();
    return comm_;
  }

  /// Whether it is connected and nothing has failed.
  bool usable() const noexcept { return comm_ != nullptr && site_->failure.empty(); }

  /// Notes a call of the whole group, for counters, messages and the comparison at the next barrier.
  void begin(comm_operation what, std::int64_t bytes, std::uint64_t signature) {
    call_ = what;
    ++number_;
    chain_ = (chain_ ^ signature ^ (static_cast<std::uint64_t>(what) << 56)) * 0x100000001b3u + 1;
    counters_[what].calls += 1;
    counters_[what].bytes += bytes;
  }
  std::int64_t number() const noexcept { return number_; }
  void marked_by(call_mark mark) noexcept { mark_ = std::move(mark); }
  /// Puts the collective that has begun into the rank's flight file. It is left when its stream is found to have done everything.
  void keep(call_info call, cudaStream_t stream) {
    flight_recorder& file = *site_->flight;
    if (flight_group_ < 0) flight_group_ = static_cast<int>(file.group(label_, members_));
    call.mark = mark_.now();
    flight_call& entered = file.enter(static_cast<std::uint32_t>(flight_group_), call, number_);
    std::erase_if(site_->kept, [&](const auto& k) { return k.call == &entered; });  // its place is taken
    site_->kept.push_back({&entered, stream});
  }
  std::uint64_t chain() const noexcept { return chain_; }

  // --- groups of calls: while one is open nothing is waited for ---
  bool grouped() const noexcept { return depth_ > 0; }
  void enter() noexcept { ++depth_; }
  void leave() noexcept { --depth_; }
  void fuse() noexcept {
    enter();
    ++fused_;
    ++site_->fused;
  }
  void unfuse() noexcept {
    leave();
    --fused_;
    --site_->fused;
  }

  /// Looks at what a call of NCCL returned, and waits until NCCL has taken it over. Success says that only of communicators whose calls block: `ncclCommSplit`,
  /// `ncclCommWindowRegister` and `ncclDevCommCreate` of others return it while a thread of NCCL's goes on (2.28), so the communicator's state is asked after every call.
  void require_nccl(const char* function, ncclResult_t result) {
    if (result != ncclSuccess && result != ncclInProgress) fail(function, result);
    if (grouped() || comm_ == nullptr) return;
    const patience until(*this);
    for (;;) {
      ncclResult_t state = ncclSuccess;
      if (const auto asked = ncclCommGetAsyncError(comm_, &state); asked != ncclSuccess)
        fail("ncclCommGetAsyncError", asked);
      if (state == ncclSuccess) return;
      if (state != ncclInProgress) fail(function, state);
      until.pause(function);
    }
  }
  void require_cuda(const char* function, cudaError_t result) {
    if (result == cudaSuccess) return;
    std::string text = function;
    text += ": ";
    text += cudaGetErrorString(result);
    give_up(text);
  }

  /// Waits until the stream has done everything, and looks out for errors of NCCL and of other ranks meanwhile.
  void wait(cudaStream_t stream) {
    const patience until(*this);
    for (;;) {
      if (done(stream)) return;
      until.pause("the stream");
    }
  }
  /// Whether the stream has done everything; not while a group of calls is open, whose calls it does not have yet.
  bool done(cudaStream_t stream) {
    if (grouped()) return false;
    if (!site_->failure.empty()) throw aborted_error(site_->failure);
    for (nccl_channel* const channel : site_->open) channel->look_for_errors();  // any of them may keep the stream
    const cudaError_t state = cudaStreamQuery(stream);
    if (state == cudaSuccess) {
      std::erase_if(site_->kept, [stream](const auto& k) {
        if (k.stream == stream) flight_recorder::leave(*k.call);
        return k.stream == stream;
      });
      return true;
    }
    if (state != cudaErrorNotReady) require_cuda("cudaStreamQuery", state);
    static_cast<void>(cudaGetLastError());  // CUDA keeps "not ready" as an error, which a later launch would find
    return false;
  }

  /// A pair of numbers of each rank, through the GPU. Returns when they are there.
  void exchange(std::span<const std::int64_t, 2> mine, std::span<std::int64_t> all, cudaStream_t stream) {
    const ncclComm_t comm = connected();
    wait(stream);  // a copy from the host may wait for the stream, without a look at failures
    auto* const first = static_cast<std::byte*>(scratch(mine.size_bytes() + all.size_bytes()));
    auto* const rest = first + mine.size_bytes();
    require_cuda("cudaMemcpyAsync",
                 cudaMemcpyAsync(first, mine.data(), mine.size_bytes(), cudaMemcpyHostToDevice, stream));
    require_nccl("ncclAllGather", ncclAllGather(first, rest, mine.size(), ncclInt64, comm, stream));
    wait(stream);  // first: a copy to the host would block without a look at failures
    require_cuda("cudaMemcpyAsync",
                 cudaMemcpyAsync(all.data(), rest, all.size_bytes(), cudaMemcpyDeviceToHost, stream));
    wait(stream);
  }

  /// While it lives the communicator's GPU is the thread's current one, which it need not be where others have made the communicator.
  class on_device {
   public:
    /// Of a channel that is connected.
    explicit on_device(nccl_channel& channel) {
      int device = 0;
      if (const auto result = ncclCommCuDevice(channel.comm_, &device); result != ncclSuccess)
        channel.fail("ncclCommCuDevice", result);
      channel.require_cuda("cudaGetDevice", cudaGetDevice(&before_));
      if (device == before_) return;
      channel.require_cuda("cudaSetDevice", cudaSetDevice(device));
      changed_ = true;
    }
    on_device(const on_device&) = delete;
    on_device& operator=(const on_device&) = delete;
    ~on_device() {
      if (changed_) static_cast<void>(cudaSetDevice(before_));
    }

   private:
    int before_ = 0;
    bool changed_ = false;
  };

  /// Waits until `ready()`, and looks out for news of other ranks meanwhile.
  template <class Ready>
  void wait_until(const char* what, const Ready& ready) {
    const patience until(*this);
    while (!ready()) until.pause(what);
  }

  // --- what is registered with the communicator, and what else belongs to it ---
  void add_window(const nccl_registered& window) {
    windows_.push_back(window);
    windows_.back().number = windows_made_++;
  }
  void remove_window(const void* begin) noexcept {
    std::erase_if(windows_, [begin](const nccl_registered& w) { return w.begin == begin; });
  }
  /// The window in which all of these bytes lie, or null.
  const nccl_registered* window_of(const void* memory, std::size_t bytes) const noexcept {
    const auto at = reinterpret_cast<std::uintptr_t>(memory);
    for (const nccl_registered& w : windows_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(w.begin);
      if (at >= begin && at - begin <= w.bytes && bytes <= w.bytes - (at - begin)) return &w;
    }
    return nullptr;
  }
  /// NCCL has said that this communicator has no device API.
  bool lacks_device_api() const noexcept { return lacks_device_api_; }
  void lack_device_api() noexcept { lacks_device_api_ = true; }
  /// By a number of its own; made by the first call.
  std::shared_ptr<nccl_attachment>& attached(int key) { return attached_[key]; }

  // --- messages: collected, and launched together ---
  struct message {
    bool sends;
    const void* from;
    void* to;
    nccl_elements what;
    int peer;
    std::int64_t bytes;
    cudaStream_t stream;
  };
  std::int64_t add(const message& m) {
    waiting_.push_back(m);
    return batch_;
  }
  bool launched(std::int64_t batch) const noexcept { return batch < batch_; }
  /// Launches what was collected, as one group of calls.
  void flush() {
    if (waiting_.empty()) return;
    const ncclComm_t comm = connected();
    std::int64_t own = 0;
    for (const message& m : waiting_)
      if (m.peer == index_) own += m.sends ? 1 : -1;
    if (own != 0) {
      waiting_.clear();
      ++batch_;
      refuse(own > 0 ? "send: a rank cannot wait for itself; post the other side first with irecv"
                     : "recv: a rank cannot wait for itself; post the other side first with isend");
    }
    const std::vector<message> now = std::exchange(waiting_, {});
    ++batch_;
    call_ = now.front().sends ? comm_operation::send : comm_operation::recv;
    require_nccl("ncclGroupStart", nccl_open_groups::start());
    enter();
    try {
      for (const message& m : now) {
        const comm_operation what = m.sends ? comm_operation::send : comm_operation::recv;
        counters_[what].calls += 1;
        counters_[what].bytes += m.bytes;
        if (m.bytes == 0) continue;  // both sides know
        if (m.sends)
          require_nccl("ncclSend", ncclSend(m.from, m.what.count, m.what.type, m.peer, comm, m.stream));
        else
          require_nccl("ncclRecv", ncclRecv(m.to, m.what.count, m.what.type, m.peer, comm, m.stream));
      }
    } catch (...) {
      leave();
      static_cast<void>(nccl_open_groups::end());
      throw;
    }
    leave();
    require_nccl("ncclGroupEnd", nccl_open_groups::end());
  }
  /// Takes started messages back, where they have not been launched.
  void drop(std::int64_t batch) noexcept {
    if (!launched(batch)) waiting_.clear();
  }
  void late(const char* what) noexcept {
    try {
      if (site_->failure.empty()) site_->failure = what;
    } catch (...) {  // no memory for the text
    }
  }

  /// The caller's mistake.
  [[noreturn]] void refuse(const std::string& what) const {
    throw comm_error(text_of({"heddle: rank ", world_rank(index_), " on communicator (", label_, "): ", what}));
  }

  /// Tells the other ranks, and aborts all communicators of this one, so that nothing keeps a GPU busy. Returns by an exception, which destroys the graphs
  /// that the communicators wait for.
  [[noreturn]] void give_up(const std::string& what) {
    std::string text = "heddle: rank ";
    text += std::to_string(world_rank(index_));
    text += " in ";
    text += where();
    text += ": ";
    text += what;
    std::string first;
    if (site_->meeting != nullptr) {
      first = site_->meeting->failure();
      if (first.empty()) site_->meeting->announce(text);
    }
    abort_all(*site_, text);
    site_->reported = true;
    if (first.empty()) throw comm_error(text);
    throw_aborted(first);
  }
  static void abort_all(nccl_site& site, const std::string& why) {
    if (site.failure.empty()) site.failure = why;
    nccl_open_groups::close_all();
    for (nccl_channel* channel : site.open) channel->abort();
  }

 private:
  // Waits a little, longer and longer; gives up when time is out or another rank has failed.
  class patience {
   public:
    explicit patience(nccl_channel& channel) : channel_(channel), until_(channel.site_->options.timeout) {}
    void pause(const char* what) const {
      if (++turns_ < 64) {
        std::this_thread::yield();
        return;
      }
      const auto nap = (std::min)(std::chrono::microseconds(1'000), std::chrono::microseconds(turns_ - 63));
      std::this_thread::sleep_for(nap);
      if (turns_ % 64 == 0 && channel_.site_->meeting != nullptr)
        if (const std::string first = channel_.site_->meeting->failure(); !first.empty()) {
          abort_all(*channel_.site_, first);
          channel_.site_->reported = true;
          channel_.throw_aborted(first);
        }
      if (!until_.passed()) return;
      std::string text = "has waited ";
      text += until_.text();
      text += " for ";
      text += what;
      channel_.give_up(text);
    }

   private:
    nccl_channel& channel_;
    deadline until_;
    mutable int turns_ = 0;
  };

  // Memory on the communicator's GPU.
  void* scratch(std::size_t bytes) {
    if (bytes > site_->scratch_bytes) {
      const on_device here(*this);
      void* memory = nullptr;
      require_cuda("cudaMalloc", cudaMalloc(&memory, bytes));
      site_->scratch.push_back(memory);
      site_->scratch_bytes = bytes;
    }
    return site_->scratch.back();
  }

  std::string where() const {
    std::string text(number_ == 0 && counters_.messages_sent() + counters_.messages_received() == 0 ? "connect"
                                                                                                    : to_string(call_));
    if (number_ > 0) {
      text += ", call ";
      text += std::to_string(number_);
    }
    text += " on communicator (";
    text += label_;
    text += ')';
    return text;
  }
  [[noreturn]] void throw_aborted(const std::string& first) const {
    throw aborted_error(text_of(
        {"heddle: rank ", world_rank(index_), " stopped in ", where(), "; another rank failed first: ", first}));
  }
  void look_for_errors() {
    ncclResult_t problem = ncclSuccess;
    if (comm_ != nullptr && ncclCommGetAsyncError(comm_, &problem) == ncclSuccess && problem != ncclSuccess &&
        problem != ncclInProgress)
      fail(to_string(call_).data(), problem);
  }
  [[noreturn]] void fail(const char* function, ncclResult_t result) {
    std::string text = function;
    text += ": ";
    text += ncclGetErrorString(result);
    if (const char* last = ncclGetLastError(comm_); last != nullptr && *last != '\0') {
      text += " (";
      text += last;
      text += ')';
    }
    give_up(text);
  }

  void connect() {
    std::string key = "nccl/";
    key += label_;
    std::string group = label_;
    for (const int m : members_) {
      group += '/';
      group += std::to_string(m);
    }
    key += '#';
    key += std::to_string(site_->made[group]++);
    ncclUniqueId id{};
    if (index_ == 0)
      if (const auto result = ncclGetUniqueId(&id); result != ncclSuccess) fail("ncclGetUniqueId", result);
    if (site_->meeting != nullptr)
      site_->meeting->share(key, members_, std::as_writable_bytes(std::span<ncclUniqueId>(&id, 1)));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = site_->settings.blocking ? 1 : 0;
    if (site_->settings.network != nccl_network::automatic)
      config.netName = site_->settings.network == nccl_network::rdma ? "IB" : "Socket";  // "IB" is RoCE's too
    require_nccl("ncclCommInitRankConfig", ncclCommInitRankConfig(&comm_, size(), id, index_, &config));
  }
  void abort() noexcept {
    waiting_.clear();
    attached_.clear();
    if (comm_ != nullptr && owned_) site_->aborts.begin(std::exchange(comm_, nullptr));
  }
  void close() {
    if (comm_ == nullptr) return;
    if (std::uncaught_exceptions() > exceptions_ || !site_->failure.empty()) return abort();
    for (const auto& [key, attachment] : std::exchange(attached_, {}))
      if (attachment != nullptr) attachment->give_back(*this);
    if (!owned_) return;
    require_nccl("ncclCommFinalize", ncclCommFinalize(comm_));
    static_cast<void>(ncclCommDestroy(comm_));
    comm_ = nullptr;
  }

  std::shared_ptr<nccl_site> site_;
  std::string label_;
  std::vector<int> members_;
  int index_;
  ncclComm_t comm_;
  bool owned_;
  int exceptions_;
  int depth_ = 0;
  int fused_ = 0;
  std::vector<nccl_registered> windows_;
  std::int64_t windows_made_ = 0;
  std::map<int, std::shared_ptr<nccl_attachment>> attached_;
  bool lacks_device_api_ = false;
  std::vector<message> waiting_;
  std::int64_t batch_ = 0;
  std::int64_t number_ = 0;
  std::uint64_t chain_ = 0xcbf29ce484222325u;
  comm_operation call_ = comm_operation::barrier;
  comm_counters counters_;
  call_mark mark_;
  int flight_group_ = -1;  // its number in the flight file
};

}  // namespace detail
}  // namespace heddle::inline v0
