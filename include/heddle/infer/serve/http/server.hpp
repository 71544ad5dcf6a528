// heddle/infer/serve/http/server.hpp: an HTTP server with OpenAI's interface.
#pragma once

#include <heddle/core/error.hpp>
#include <heddle/core/text.hpp>
#include <heddle/infer/serve/http/listener.hpp>
#include <heddle/infer/serve/http/page.hpp>
#include <heddle/infer/serve/openai/openapi.hpp>
#include <heddle/infer/serve/openai/running_call.hpp>
#include <heddle/infer/serve/request_queue.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace heddle::inline v0::infer {

/// Whether two texts are the same, in a time that depends on the length of `given` alone.
inline bool same_secret(std::string_view given, std::string_view expected) noexcept {
  volatile unsigned different = given.size() == expected.size() ? 0U : 1U;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char e = expected.empty() ? '\0' : expected[i % expected.size()];
    different = different | static_cast<unsigned>(static_cast<unsigned char>(given[i]) ^ static_cast<unsigned char>(e));
  }
  return different == 0;
}

/// Serves /v1/completions and /v1/chat/completions (whole or streamed), /v1/models, /health, /metrics, /openapi.json and a chat page
/// at /. Tokens, templates and JSON are computed on the threads of connections. It listens from its construction on; calls are answered with 503
/// until `run_engine` opens the queue. A client that disconnects ends its requests.
/// Errors: every answer with a status of 400 or more has the body of `api_error`.
class server {
 public:
  /// The queue must outlive the server. Errors: `comm_error` if it cannot listen; `config_error` for options
  /// without connections, without tokens of an answer, with a port beyond 65535 or with an empty key, and of `answer_masks`.
  server(request_queue& queue, io::tokenizer tokenizer, server_options options = {})
      : queue_(queue),
        tokenizer_(std::move(tokenizer)),
        masks_(tokenizer_, options.masks),
        options_(std::move(options)),
        created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                     .count()),
        http_(checked(options_)) {
    std::random_device random;
    run_ = (std::uint64_t{random()} << 32) | random();
    route();
    port_ = http_.bind();
    listener_ = std::thread([this] {
      const std::string what = http_.accept_until_closing();
      if (what.empty()) return;
      {
        const std::scoped_lock lock(failing_);
        failure_ = "heddle: the server on port " + std::to_string(port_) + " " + what;
      }
      queue_.drain();  // what runs is finished
    });
  }
  server(const server&) = delete;
  server& operator=(const server&) = delete;
  ~server() { stop(); }

  int port() const noexcept { return port_; }
  const server_options& options() const noexcept { return options_; }
  /// The error after which no connection was accepted any more; empty if there was none. The queue then drains, so that `run_engine`
  /// returns when what was accepted is finished: a program that sees this text then ends with an error.
  std::string failure() const {
    const std::scoped_lock lock(failing_);
    return failure_;
  }

  /// Refuses further calls, waits for those that run, ends what is left after `drain_timeout` with an error, then closes all connections. May be called twice.
  void stop() {
    const std::scoped_lock lock(stopping_);
    if (!listener_.joinable()) return;
    queue_.drain();
    if (!http_.answers().wait_for_none(options_.drain_timeout)) {
      queue_.abort();
      http_.answers().wait_for_none(std::chrono::milliseconds(2000));
    }
    http_.closing() = true;
    listener_.join();
    http_.join();
  }

 private:
  static const server_options& checked(const server_options& o) {
    if (o.most_connections < 1)
      throw config_error("heddle: a server needs most_connections of at least 1, got " +
                         std::to_string(o.most_connections));
    if (o.most_answer_tokens && *o.most_answer_tokens < 1)
      throw config_error("heddle: a server needs most_answer_tokens of at least 1, got " +
                         std::to_string(*o.most_answer_tokens));
    if (o.port < 0 || o.port > 65535)
      throw config_error("heddle: a server's port should be from 0 to 65535, got " + std::to_string(o.port));
    for (const std::string& key : o.keys)
      if (key.empty()) throw config_error("heddle: a server's keys must not be empty");
    return o;
  }
  using http_request = httplib::Request;
  using http_response = httplib::Response;
  using handled = httplib::Server::HandlerResponse;

  // ---- routes ----
  void route() {
    http_.set_pre_routing_handler([this](const http_request& q, http_response& r) { return before_body(q, r); });
    http_.Post("/v1/completions", [this](const http_request& q, http_response& r) { complete(q, r, false); });
    http_.Post("/v1/chat/completions", [this](const http_request& q, http_response& r) { complete(q, r, true); });
    http_.set_error_handler([this](const http_request& q, http_response& r) { explain(q, r); });
    http_.set_exception_handler([](const http_request&, http_response& r, std::exception_ptr) {
      fail(r, {500, "server_error", "an unexpected error", std::nullopt, "internal_error"});
    });
  }
  static bool is_call(std::string_view path) { return path == "/v1/completions" || path == "/v1/chat/completions"; }
  static bool is_page(std::string_view path) {
    constexpr std::array<std::string_view, 5> pages{"/", "/health", "/metrics", "/openapi.json", "/v1/models"};
    return std::ranges::count(pages, path) > 0 || path.starts_with("/v1/models/");
  }
  static bool is_open_to_all(std::string_view path) {
    return path == "/" || path == "/health" || path.starts_with("/v1/models");
  }

  static std::string_view allowed(std::string_view path) { return is_call(path) ? "POST" : "GET, HEAD"; }
  static api_error wrong_method(http_response& r, const std::string& path, const std::string& method) {
    const std::string methods(allowed(path));
    r.set_header("Allow", methods);
    return {405, "invalid_request_error", path + " takes " + methods + ", got " + method, std::nullopt,
            "method_not_allowed"};
  }

  // Whatever needs no body: pages, and refusals of calls.
  handled before_body(const http_request& q, http_response& r) {
    try {
      if (!is_call(q.path) && !is_page(q.path))
        throw api_error(404, "invalid_request_error", "there is no " + q.path, std::nullopt, "not_found");
      const std::string_view methods = allowed(q.path);
      if (methods.find(q.method) == std::string_view::npos) throw wrong_method(r, q.path, q.method);
      if (!is_open_to_all(q.path)) require_key(q);
      if (is_call(q.path)) {
        require_json(q);
        return handled::Unhandled;
      }
      page(q, r);
    } catch (const api_error& e) {
      fail(r, e);
    }
    // A body that nobody reads is not to be taken for the next request.
    if (q.has_header("Transfer-Encoding") || q.get_header_value_count("Content-Length") > 1 ||
        (q.has_header("Content-Length") && q.get_header_value("Content-Length") != "0")) {
      r.set_header("Connection", "close");
      http_.current().close_after_answer();
    }
    return handled::Handled;
  }
  static bool same_without_case(std::string_view a, std::string_view b) {
    const auto small = [](char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c); };
    return std::ranges::equal(a, b, {}, small, small);
  }
  void require_key(const http_request& q) {
    if (options_.keys.empty()) return;
    constexpr std::string_view scheme = "Bearer ";  // in any case: RFC 9110, section 11.1
    const std::string given = http_.current().header_as_sent("Authorization").value_or("");
    bool known = false;
    if (q.get_header_value_count("Authorization") == 1 &&
        same_without_case(std::string_view(given).substr(0, scheme.size()), scheme))
      for (const std::string& key : options_.keys)
        known = same_secret(std::string_view(given).substr(scheme.size()), key) || known;
    if (!known)
      throw api_error(401, "authentication_error", "a known key is needed: Authorization: Bearer KEY", std::nullopt,
                      "invalid_api_key");
  }
  static void require_json(const http_request& q) {
    // A page of another origin cannot send this type without being asked for permission, which is not given.
    const std::string type = q.get_header_value("Content-Type");
    const std::string_view media = std::string_view(type).substr(0, type.find(';'));
    const std::string_view name = media.substr(0, media.find_last_not_of(" \t") + 1);
    if (!same_without_case(name, "application/json"))
      throw api_error(415, "invalid_request_error", "a call needs Content-Type: application/json", std::nullopt,
                      "unsupported_media_type");
    const bool chunked = q.has_header("Transfer-Encoding");
    if (!q.has_header("Content-Length") && !chunked)  // httplib would wait for the end of the connection
      throw api_error(411, "invalid_request_error", "a call needs Content-Length or Transfer-Encoding", std::nullopt,
                      "length_required");
    // Where the body ends must have one meaning only: what another reader takes for the rest of it would be the next request here.
    const std::string length = q.get_header_value("Content-Length");
    const bool one_length = q.get_header_value_count("Content-Length") == 1 && !length.empty() && length.size() <= 18 &&
                            length.find_first_not_of("0123456789") == std::string::npos;
    const bool one_coding = q.get_header_value_count("Transfer-Encoding") == 1 &&
                            q.get_header_value("Transfer-Encoding") == "chunked" && !q.has_header("Content-Length");
    if (chunked ? !one_coding : !one_length)
      throw api_error(400, "invalid_request_error",
                      "a call has one Content-Length in digits, or Transfer-Encoding: chunked alone", std::nullopt,
                      "bad_request");
    if (q.has_header("Content-Encoding"))
      throw api_error(415, "invalid_request_error", "a call has no Content-Encoding", std::nullopt,
                      "unsupported_media_type");
  }

  void page(const http_request& q, http_response& r) {
    if (q.path == "/") {
      r.set_header("Content-Security-Policy",
                   "default-src 'none'; connect-src 'self'; img-src data:; script-src 'unsafe-inline'; style-src "
                   "'unsafe-inline'; "
                   "base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
      r.set_content(std::string(detail::chat_page), "text/html; charset=utf-8");
    } else if (q.path == "/health") {
      try {
        queue_.require_open();
        send(r, {{"status", "ok"}});
      } catch (const unavailable_error& e) {
        fail(r, to_api_error(e));
      }
    } else if (q.path == "/metrics") {
      r.set_content(queue_.statistics().to_text(options_.model, queue_.waiting()),
                    "text/plain; version=0.0.4; charset=utf-8");
    } else if (q.path == "/openapi.json") {
      send(r, openapi_description(options_.model, queue_.vocabulary(), queue_.context(), options_.chat.renders()));
    } else if (q.path == "/v1/models") {
      send(r, {{"object", "list"}, {"data", nlohmann::json::array({model()})}});
    } else {
      const std::string name = q.path.substr(std::string_view("/v1/models/").size());
      if (name != options_.model) throw no_model(name);
      send(r, model());
    }
  }
  nlohmann::json model() const {
    return {{"id", options_.model}, {"object", "model"}, {"created", created_}, {"owned_by", "heddle"}};
  }
  api_error no_model(const std::string& name) const {
    return {404, "invalid_request_error", "there is no model '" + name + "'; this server has '" + options_.model + "'",
            "model", "model_not_found"};
  }

  // ---- answers ----
  static void send(http_response& r, const nlohmann::json& value) {
    r.set_content(json_text(value), "application/json");
  }
  static void fail(http_response& r, const api_error& e) {
    r.status = e.status();
    send(r, e.body());
  }
  void fail_call(http_response& r, const api_error& e) const {
    if (e.status() == 429 || e.status() == 503) r.set_header("Retry-After", std::to_string(options_.retry_after_s));
    fail(r, e);
  }
  // Statuses of httplib's own.
  void explain(const http_request& q, http_response& r) {
    if (!r.body.empty()) return;
    detail::connection& c = http_.current();
    r.set_header("Connection", "close");
    c.close_after_answer();
    const std::string path = q.target.substr(0, q.target.find('?'));
    const auto refused = [&](int status, const std::string& what, const char* code) {
      fail(r, {status, "invalid_request_error", what, std::nullopt, code});
    };
    if (c.timed_out())
      refused(408, "the request did not come in time", "request_timeout");
    else if (r.status == 413 || c.too_long())
      refused(
          413,
          "the header or the body has too many bytes; a body has at most " + std::to_string(options_.most_body_bytes),
          "request_too_large");
    else if (q.path.empty() && (is_call(path) || is_page(path)) &&
             allowed(path).find(q.method) == std::string_view::npos)
      fail(r, wrong_method(r, path, q.method));  // one that httplib does not know
    else
      refused(r.status, "the request cannot be read", "bad_request");
  }

  void complete(const http_request& q, http_response& r, bool chat) {
    try {
      if (q.body.size() > options_.most_body_bytes)  // in chunks: httplib bounds other bodies
        throw api_error(413, "invalid_request_error",
                        "the body has more than " + std::to_string(options_.most_body_bytes) + " bytes", std::nullopt,
                        "request_too_large");
      completion_call call = parse_call(q.body, chat, options_.sampling);
      if (const auto most = options_.most_answer_tokens)
        call.max_tokens = (std::min)(call.max_tokens.value_or(*most), *most);
      if (call.stream && q.version == "HTTP/1.0")
        throw api_error(400, "invalid_request_error", "a stream needs HTTP/1.1", "stream", "unsupported_protocol");
      if (!call.model.empty() && call.model != options_.model) throw no_model(call.model);
      auto running = std::make_shared<running_call>(queue_, call, tokenizer_, options_.chat, &masks_);
      const std::string id = (chat ? "chatcmpl-" : "cmpl-") + std::to_string(run_) + "-" + std::to_string(++last_id_);
      const auto now =
          std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
      const response_writer writer(chat, id, options_.model, now, call.log_probabilities.has_value(),
                                   call.include_usage);
      detail::connection& c = http_.current();
      if (!call.stream) {
        answer(c, q, r, *running, writer);
        return;
      }
      r.set_header("Cache-Control", "no-cache");
      r.set_header("X-Accel-Buffering", "no");
      r.set_chunked_content_provider("text/event-stream", [&c, running, writer, chat, usage = call.include_usage](
                                                              std::size_t, httplib::DataSink& sink) {
        return stream(c, *running, writer, chat, usage, sink);
      });
    } catch (const std::exception& e) {
      fail_call(r, to_api_error(e, chat ? "messages" : "prompt"));
    }
  }

  static constexpr std::chrono::milliseconds look_at_client{100};

  static api_error failure(const answer_part& part) {
    if (part.finish == finish_reason::cancelled)
      return {503, "service_unavailable_error", "the server is shutting down", std::nullopt, "unavailable"};
    return {500, "server_error", std::string(without_prefix(part.message)), std::nullopt, "internal_error"};
  }
  static bool failed(const answer_part& part) {
    return part.finish == finish_reason::error || part.finish == finish_reason::cancelled;
  }

  // A client that sends no more may still read, or have gone: it is asked once, by bytes that it passes over. To those a connection
  // that nobody has answers with a reset.
  static bool has_gone(detail::connection& c, bool& asked, auto ask) {
    switch (c.client()) {
      case detail::client_state::there:
        return false;
      case detail::client_state::gone:
        return true;
      case detail::client_state::half_closed:
        break;
    }
    return !std::exchange(asked, true) && !ask();
  }

  void answer(detail::connection& c, const http_request& q, http_response& r, running_call& running,
              const response_writer& writer) const {
    bool asked = false;
    const auto ask = [&] {  // an interim answer, which HTTP/1.0 has not
      const std::string_view interim = "HTTP/1.1 100 Continue\r\n\r\n";
      return q.version == "HTTP/1.1" && c.write(interim.data(), interim.size()) == std::ssize(interim);
    };
    std::vector<finished_choice> choices(running.choices());
    std::vector<choice_part> parts;
    while (!running.ended()) {
      running.take(parts, look_at_client);
      for (choice_part& p : parts) {
        if (failed(p.what)) return fail_call(r, failure(p.what));
        finished_choice& to = choices[p.choice];
        to.text += p.what.text;
        to.reasoning += p.what.reasoning;
        std::ranges::move(p.what.calls, std::back_inserter(to.calls));
        std::ranges::move(p.what.tokens, std::back_inserter(to.tokens));
        to.finish = p.what.finish;
      }
      if (!running.ended() && has_gone(c, asked, ask)) {
        c.close_after_answer();
        return fail(r, {499, "invalid_request_error", "the client closed the connection"});
      }
    }
    send(r, writer.whole(choices, running.usage()));
  }

  static bool stream(detail::connection& c, running_call& running, const response_writer& writer, bool chat,
                     bool include_usage, httplib::DataSink& sink) {
    const auto put = [&](std::string_view text) { return sink.write(text.data(), text.size()); };
    const auto put_json = [&](const nlohmann::json& value) { return put(response_writer::server_sent(value)); };
    for (std::size_t i = 0; chat && i < running.choices(); ++i)
      if (!put_json(writer.role_chunk(i))) return false;
    bool asked = false;
    std::vector<std::size_t> offsets(running.choices()), calls(running.choices());
    std::vector<choice_part> parts;
    while (!running.ended()) {
      running.take(parts, look_at_client);
      for (const choice_part& p : parts) {
        if (failed(p.what)) {
          put_json(failure(p.what).body());
          sink.done();
          return true;
        }
        if (!p.what.text.empty() || !p.what.tokens.empty() || !p.what.reasoning.empty() || !p.what.calls.empty()) {
          if (!put_json(writer.text_chunk(p.choice, p.what, offsets[p.choice], calls[p.choice]))) return false;
          offsets[p.choice] += p.what.text.size();
          calls[p.choice] += p.what.calls.size();
        }
        if (p.what.finish != finish_reason::none &&
            !put_json(writer.finish_chunk(p.choice, p.what.finish, p.what.called)))
          return false;
      }
      if (!running.ended() && has_gone(c, asked, [&] { return put(": a comment\n\n"); })) return false;
    }
    if (include_usage && !put_json(writer.usage_chunk(running.usage()))) return false;
    if (!put(response_writer::done)) return false;
    sink.done();
    return true;
  }

  request_queue& queue_;
  io::tokenizer tokenizer_;
  answer_masks masks_;
  server_options options_;
  std::int64_t created_;
  std::uint64_t run_ = 0;
  std::atomic<std::uint64_t> last_id_{0};
  detail::http_listener http_;
  int port_ = 0;
  mutable std::mutex failing_{};
  std::string failure_{};
  std::mutex stopping_{};
  std::thread listener_{};
};

}  // namespace heddle::inline v0::infer
