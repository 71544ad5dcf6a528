#include <heddle/core/config.hpp>

#if __has_include( \
    <httplib.h>) && __has_include(<pcre2.h>) && __has_include(<utf8proc.h>) && __has_include(<nlohmann/json.hpp>)
#include "catch.hpp"
#include "served.hpp"  // HEDDLE_SOURCE_DIR: where its tokenizer lies

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace hd = heddle;
namespace inf = heddle::infer;
namespace io = heddle::io;
using json = nlohmann::json;
using Catch::Matchers::Contains;

namespace {

const std::string completions = "/v1/completions";
const std::string chats = "/v1/chat/completions";

json small_call(json more = json::object()) {
  json body{{"prompt", {1, 2, 3}}, {"max_tokens", 8}, {"seed", 4}};
  body.update(more);
  return body;
}

// The events of a stream, without the "[DONE]" that it must end with.
std::vector<json> events_of(const std::string& body) {
  std::vector<json> out;
  std::size_t at = 0;
  bool done = false;
  while (at < body.size()) {
    const std::size_t end = body.find("\n\n", at);
    REQUIRE(end != std::string::npos);
    const std::string event = body.substr(at, end - at);
    REQUIRE(event.starts_with("data: "));
    REQUIRE_FALSE(done);
    done = event == "data: [DONE]";
    if (!done) out.push_back(json::parse(event.substr(6)));
    at = end + 2;
  }
  CHECK(done);
  return out;
}

std::string text_of(const std::vector<json>& events, const char* kind, int choice = 0) {
  std::string out;
  for (const json& e : events)
    for (const json& c : e["choices"]) {
      if (c["index"] != choice) continue;
      const json& text = kind == std::string("text") ? c["text"] : c["delta"].value("content", json());
      if (text.is_string()) out += text.get<std::string>();
    }
  return out;
}

// A connection that sends what it likes.
class raw_client {
 public:
  explicit raw_client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in a{};
    a.sin_family = AF_INET;
    a.sin_port = htons(static_cast<std::uint16_t>(port));
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0;
  }
  raw_client(const raw_client&) = delete;
  raw_client& operator=(const raw_client&) = delete;
  ~raw_client() { ::close(socket_); }
  bool connected() const { return connected_; }
  void end_sending() const { ::shutdown(socket_, SHUT_WR); }
  void send(const std::string& text) const { ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  void call(const std::string& path, const json& body) const {
    const std::string text = body.dump();
    send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(text.size()) + "\r\n\r\n" + text);
  }
  // What comes until the server closes, or `until` has come.
  std::string receive(const std::string& until = "") const {
    std::string out;
    char buffer[1024];
    while (until.empty() || out.find(until) == std::string::npos) {
      const ssize_t n = ::recv(socket_, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      out.append(buffer, static_cast<std::size_t>(n));
    }
    return out;
  }

 private:
  int socket_;
  bool connected_ = false;
};

}  // namespace

TEST_CASE("a server answers completions, whole and streamed, with the text of the request alone", "[infer][serve]") {
  served::service s;
  const auto [status, whole] = s.post(completions, small_call({{"n", 2}, {"logprobs", 1}}));
  CAPTURE(whole.dump(-1, ' ', true, json::error_handler_t::replace));
  REQUIRE(status == 200);
  const io::tokenizer t = served::golden_tokenizer();
  for (std::uint64_t i = 0; i < 2; ++i) {
    const inf::request alone{.prompt = {1, 2, 3}, .max_tokens = 8, .sampling = {.seed = 4 + i}};
    const fake::answer expected = fake::alone(alone, {.vocabulary = served::room.vocabulary}, served::room.context);
    CHECK(whole["choices"][i]["text"] == t.decode(expected.tokens, {.skip_special_tokens = true}));
    CHECK(whole["choices"][i]["finish_reason"] == "length");
    CHECK(whole["choices"][i]["index"] == i);
  }
  CHECK(whole["usage"]["prompt_tokens"] == 3);
  CHECK(whole["usage"]["completion_tokens"] == 16);

  const httplib::Result r =
      s.client().Post(completions, small_call({{"n", 2}, {"stream", true}}).dump(), "application/json");
  REQUIRE(r);
  CHECK(r->get_header_value("Content-Type") == "text/event-stream");
  const std::vector<json> events = events_of(r->body);
  for (int i = 0; i < 2; ++i)
    CHECK(whole["choices"][static_cast<std::size_t>(i)]["text"] == text_of(events, "text", i));
  for (const json& e : events) CHECK(e["id"] == events[0]["id"]);
}

TEST_CASE("a server answers conversations: one role, text, a reason, the usage", "[infer][serve]") {
  served::service s;
  const json messages = json::array({{{"role", "user"}, {"content", "hi"}}});
  const json call{{"messages", messages}, {"max_tokens", 6}, {"seed", 1}, {"model", "fake"}};
  const auto [status, whole] = s.post(chats, call);
  REQUIRE(status == 200);
  CHECK(whole["choices"][0]["message"]["role"] == "assistant");
  json streamed = call;
  streamed.update({{"stream", true}, {"stream_options", {{"include_usage", true}}}});
  const httplib::Result r = s.client().Post(chats, streamed.dump(), "application/json");
  REQUIRE(r);
  const std::vector<json> events = events_of(r->body);
  REQUIRE(events.size() >= 3);
  CHECK(events[0]["choices"][0]["delta"] == json::parse(R"({"role": "assistant", "content": null})"));
  CHECK(whole["choices"][0]["message"]["content"] == text_of(events, "content"));
  CHECK(events[events.size() - 2]["choices"][0]["finish_reason"] == "length");
  CHECK(events.back()["choices"] == json::array());
  CHECK(events.back()["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]);
  for (std::size_t i = 0; i + 1 < events.size(); ++i) CHECK(events[i]["usage"].is_null());
}

TEST_CASE("an answer that is to be a JSON object is one, where it ends before its length does", "[infer][serve]") {
  served::service s({}, 64, {.max_running = 16, .end_tokens = {3}});
  json call{{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})},
            {"response_format", {{"type", "json_object"}}},
            {"logit_bias", {{"3", 6}}},
            {"n", 8}};
  int ended = 0;
  for (int seed = 0; seed < 5; ++seed) {
    CAPTURE(seed);
    call["seed"] = 100 * seed;
    const auto [status, answer] = s.post(chats, call);
    REQUIRE(status == 200);
    for (const json& choice : answer["choices"]) {
      const std::string text = choice["message"]["content"];
      CAPTURE(text);
      CHECK(text.find('{') < 17);
      if (choice["finish_reason"] != "stop") continue;
      ++ended;
      CHECK(json::parse(text, nullptr, false).is_object());
    }
  }
  CHECK(ended > 0);
  served::service without;
  const auto [status, refused] = without.post(chats, call);
  CHECK(status == 400);
  CHECK(refused["error"]["param"] == "response_format");
}

TEST_CASE("an answer that is constrained by a schema or an expression fits it, where it ends before its length does",
          "[infer][serve]") {
  served::service s({}, 64, {.max_running = 16, .end_tokens = {3}});
  const json schema = json::parse(
      R"({"type": "object", "required": ["b", "a"], "additionalProperties": false, "properties": {
      "b": {"enum": ["x", "yes"]}, "a": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 30}, "maxItems": 2}}})");
  json call{{"prompt", "hi"}, {"logit_bias", {{"3", 6}}}, {"n", 8}, {"max_tokens", 50}};
  int ended = 0;
  for (int seed = 0; seed < 4; ++seed) {
    CAPTURE(seed);
    call["seed"] = 100 * seed;
    call["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}};
    const auto [status, answer] = s.post(completions, call);
    REQUIRE(status == 200);
    for (const json& choice : answer["choices"]) {
      const std::string text = choice["text"];
      CAPTURE(text);
      if (choice["finish_reason"] != "stop") continue;
      ++ended;
      const json value = json::parse(text, nullptr, false);
      REQUIRE(value.is_object());
      CHECK((value["b"] == "x" || value["b"] == "yes"));
      CHECK(value["a"].size() <= 2);
      for (const json& i : value["a"]) CHECK((i.is_number_integer() && i >= 0 && i <= 30));
    }
    call["response_format"] = {{"type", "regex"}, {"regex", "(no|[1-9][0-9]{0,2}%)"}};
    const auto [with_regex, matched] = s.post(completions, call);
    REQUIRE(with_regex == 200);
    for (const json& choice : matched["choices"]) {
      const std::string text = choice["text"];
      CAPTURE(text);
      CHECK(choice["finish_reason"] == "stop");
      CHECK((text == "no" || (text.size() >= 2 && text.size() <= 4 && text.back() == '%')));
    }
  }
  CHECK(ended > 10);
  const auto refused = [&](json format, const char* why) {
    call["response_format"] = std::move(format);
    const auto [status, body] = s.post(completions, call);
    CHECK(status == 400);
    CHECK(body["error"]["code"] == "invalid_grammar");
    CHECK(body["error"]["param"] == "response_format");
    CHECK_THAT(body["error"]["message"].get<std::string>(), Contains(why));
  };
  refused({{"type", "regex"}, {"regex", "(?=a)"}}, "byte 0: of groups only");
  refused({{"type", "json_schema"}, {"json_schema", {{"schema", {{"type", "string"}, {"not", {{"const", "a"}}}}}}}},
          "at '#': 'not' is not supported");
  // What another member asks for is refused by its name.
  call["response_format"] = nullptr;
  call["structured_outputs"] = {{"json", {{"type", "string"}, {"maxLength", 9000}}}};
  const auto [status, body] = s.post(completions, call);
  CHECK(status == 400);
  CHECK(body["error"]["param"] == "structured_outputs.json");
  CHECK_THAT(body["error"]["message"].get<std::string>(), Contains("at '#': a grammar is too large"));
}

TEST_CASE("constraints that other servers name otherwise constrain the answer", "[infer][serve]") {
  served::service s({}, 64, {.max_running = 16, .end_tokens = {3}});
  const auto texts = [&](json more) {
    json call{{"prompt", "hi"}, {"logit_bias", {{"3", 6}}}, {"n", 8}, {"max_tokens", 50}, {"seed", 1}};
    call.update(more);
    const auto [status, answer] = s.post(completions, call);
    CAPTURE(call.dump(), answer.dump());
    CHECK(status == 200);
    std::vector<std::string> out;
    for (const json& choice : answer["choices"])
      if (choice["finish_reason"] == "stop") out.push_back(choice["text"]);
    return out;
  };
  const json choices{"a.b", "x|y (z)"};
  const json of_choice{{"guided_choice", choices}}, in_outputs{{"structured_outputs", {{"choice", choices}}}};
  for (const json& call : {of_choice, in_outputs}) {
    const std::vector<std::string> got = texts(call);
    CHECK(got.size() == 8);
    for (const std::string& text : got) CHECK((text == "a.b" || text == "x|y (z)"));
  }
  for (const char* name : {"guided_regex", "regex"})
    for (const std::string& text : texts({{name, "ab?"}})) CHECK((text == "a" || text == "ab"));
  const json schema{{"type", "integer"}, {"minimum", 7}, {"maximum", 9}};
  const json calls = json::array({{{"guided_json", schema}},
                                  {{"guided_json", schema.dump(2)}},
                                  {{"json_schema", schema}},
                                  {{"structured_outputs", {{"json", schema}}}},
                                  {{"response_format", {{"type", "json_object"}, {"schema", schema}}}}});
  for (const json& call : calls) {
    const std::vector<std::string> got = texts(call);
    CHECK(got.size() == 8);
    for (const std::string& text : got) CHECK((text == "7" || text == "8" || text == "9"));
  }
  for (const std::string& text : texts({{"structured_outputs", {{"json_object", true}}}}))
    CHECK(json::parse(text, nullptr, false).is_object());
}

TEST_CASE("an answer has at least min_tokens, and none but allowed_token_ids", "[infer][serve]") {
  served::service s({}, 64, {.max_running = 16, .end_tokens = {3}});
  const auto tokens = [&](json more) {
    json call = small_call({{"max_tokens", 20}, {"logit_bias", {{"3", 100}}}, {"stop_token_ids", {5}}, {"n", 4}});
    call.update(more);
    const auto [status, answer] = s.post(completions, call);
    CAPTURE(answer.dump());
    REQUIRE(status == 200);
    return answer["usage"]["completion_tokens"].get<int>();
  };
  CHECK(tokens(json::object()) == 4);  // the first ends each
  CHECK(tokens({{"min_tokens", 7}}) == 4 * 8);
  CHECK(tokens({{"min_tokens", 20}, {"allowed_token_ids", {3, 5, 40}}}) == 4 * 20);
  const io::tokenizer t = served::golden_tokenizer();
  const std::string word(t.token_bytes(40));
  const json only = s.post(completions, small_call({{"allowed_token_ids", {40}}})).second;
  std::string repeated;
  for (int i = 0; i < 8; ++i) repeated += word;
  CHECK(only["choices"][0]["text"] == repeated);
  const auto refused = [&](json more, const char* param) {
    const auto [status, body] = s.post(completions, small_call(std::move(more)));
    CHECK(status == 400);
    CHECK(body["error"]["param"] == param);
  };
  refused({{"allowed_token_ids", {905}}}, "allowed_token_ids");
  refused({{"allowed_token_ids", {3}}, {"min_tokens", 1}}, "allowed_token_ids");
  refused({{"min_tokens", 9}}, "min_tokens");  // of 8
}

TEST_CASE("a stop string ends an answer before it, and the request in the engine", "[infer][serve]") {
  served::service s;
  const json call = small_call({{"max_tokens", 50}});
  const std::string text = s.post(completions, call).second["choices"][0]["text"];
  std::size_t from = text.size() / 3;
  while ((static_cast<unsigned char>(text[from]) & 0xc0) == 0x80) ++from;
  std::size_t to = from + 1;
  while (to < text.size() && (static_cast<unsigned char>(text[to]) & 0xc0) == 0x80) ++to;
  const std::string stop = text.substr(from, to - from);
  s.runner.delay_ms = 20;  // so that the end is told before the last token
  json stopped = call;
  stopped["stop"] = stop;
  const auto [status, body] = s.post(completions, stopped);
  REQUIRE(status == 200);
  CHECK(body["choices"][0]["text"] == text.substr(0, text.find(stop)));
  CHECK(body["choices"][0]["finish_reason"] == "stop");
  CHECK(served::service::soon([&] { return s.queue.statistics().ended(inf::finish_reason::stop) == 1; }));
  CHECK(served::service::soon([&] { return s.queue.statistics().counts().cache.used == 0; }));
}

TEST_CASE("what a server refuses has a status and a body that says why", "[infer][serve]") {
  inf::server_options o;
  o.most_body_bytes = 2000;
  served::service s(o);
  const auto refused = [&](int status, const char* code, std::pair<int, json> got) {
    CAPTURE(code, got.second.dump());
    CHECK(got.first == status);
    CHECK(got.second["error"]["code"] == code);
    CHECK(got.second["error"]["message"].is_string());
  };
  refused(400, "invalid_json", s.post_text(completions, "{"));
  refused(400, "invalid_json", s.post_text(completions, ""));
  refused(400, "invalid_type", s.post(completions, small_call({{"max_tokens", "5"}})));
  refused(400, "context_length_exceeded", s.post(completions, small_call({{"prompt", std::vector<int>(64, 1)}})));
  refused(400, "context_length_exceeded",
          s.post(completions, small_call({{"prompt", std::vector<int>(64, 1)}, {"stream", true}})));
  refused(404, "model_not_found", s.post(completions, small_call({{"model", "other"}})));
  refused(404, "not_found", s.post("/v1/nothing", small_call()));
  refused(413, "request_too_large", s.post(completions, small_call({{"user", std::string(3000, 'x')}})));
  refused(415, "unsupported_media_type", s.post_text(completions, small_call().dump(), {}, "text/plain"));
  refused(415, "unsupported_media_type", s.post_text(completions, small_call().dump(), {{"Content-Encoding", "gzip"}}));
  const json context = s.post(completions, small_call({{"prompt", std::vector<int>(70, 1)}})).second["error"];
  CHECK(context["type"] == "exceed_context_size_error");
  CHECK(context["n_prompt_tokens"] == 70);
  CHECK(context["n_ctx"] == 64);
  const httplib::Result get = s.client().Get(completions);
  REQUIRE(get);
  CHECK(get->status == 405);
  CHECK(get->get_header_value("Allow") == "POST");
  CHECK(s.client().Delete("/health")->status == 405);
  CHECK(s.client().Get("/v1/models/other")->status == 404);
  // What does not speak HTTP gets an answer, too, and a body that nobody read is not the next request.
  raw_client odd(s.server.port());
  odd.send("HELLO\r\n\r\n");
  CHECK_THAT(odd.receive(), Contains("400") && Contains("bad_request"));
  raw_client query(s.server.port());
  query.send("QUERY /v1/completions HTTP/1.1\r\n\r\n");
  CHECK_THAT(query.receive(), Contains("405") && Contains("Allow: POST"));
  raw_client endless(s.server.port());
  endless.send("POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n\r\n");
  CHECK_THAT(endless.receive("length_required"), Contains("411"));
  raw_client smuggle(s.server.port());
  smuggle.send("PUT /v1/completions HTTP/1.1\r\nContent-Length: 25\r\n\r\nGET /health HTTP/1.1\r\n\r\n\r\n");
  const std::string once = smuggle.receive();
  CHECK_THAT(once, Contains("405"));
  CHECK_THAT(once, !Contains("200 OK"));
  for (const char* lengths : {"Content-Length: 0\r\nContent-Length: 25", "Content-Length: 25\r\nContent-Length: 0"}) {
    CAPTURE(lengths);
    raw_client page(s.server.port());
    page.send("GET /v1/models HTTP/1.1\r\n" + std::string(lengths) + "\r\n\r\nGET /metrics HTTP/1.1\r\n\r\n");
    CHECK_THAT(page.receive(), !Contains("heddle:"));
  }
  const std::string post = "POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n";
  for (const char* length : {"Content-Length: abc", "Content-Length: -1", "Content-Length: 2\r\nContent-Length: 30",
                             "Content-Length: 2\r\nTransfer-Encoding: chunked", "Transfer-Encoding: gzip"}) {
    CAPTURE(length);
    raw_client twice(s.server.port());
    twice.send(post + length + "\r\n\r\nGET /health HTTP/1.1\r\n\r\n");
    const std::string answer = twice.receive();
    CHECK_THAT(answer, Contains("400") && Contains("bad_request"));
    CHECK_THAT(answer, !Contains("200 OK"));
  }
  // Limits hold for chunks and for headers, too.
  for (const std::size_t bytes : {std::size_t{3000}, std::size_t{50000}}) {
    raw_client chunks(s.server.port());
    chunks.send(post + "Transfer-Encoding: chunked\r\n\r\n");
    std::string text = small_call({{"user", std::string(bytes, 'x')}}).dump();
    char size[32];
    std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    chunks.send(size + text + "\r\n0\r\n\r\n");
    CHECK_THAT(chunks.receive("request_too_large"), Contains("413"));
  }
  raw_client long_header(s.server.port());
  long_header.send("GET /health HTTP/1.1\r\n");
  for (int i = 0; i < 100; ++i) long_header.send("A: " + std::string(1000, 'a') + "\r\n");
  long_header.send("\r\n");
  CHECK_THAT(long_header.receive("request_too_large"), Contains("413"));
}

TEST_CASE("a key is asked for where there is one, but for health, models and the page", "[infer][serve]") {
  inf::server_options o;
  o.keys = {"first", "second key", "a%41b%2", "p+q"};
  served::service s(o);
  const auto status = [&](const std::string& authorization) {
    return s.post(completions, small_call(), {{"Authorization", authorization}}).first;
  };
  CHECK(s.post(completions, small_call()).first == 401);
  CHECK(status("Bearer first") == 200);
  CHECK(status("Bearer second key") == 200);
  CHECK(status("Bearer a%41b%2") == 200);  // as it is: not decoded
  CHECK(status("Bearer aAb%2") == 401);
  CHECK(status("Bearer p+q") == 200);
  {  // a name in another case, with blanks around the value, and not twice
    const auto raw = [&](const std::string& lines) {
      const raw_client c(s.server.port());
      c.send("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + lines + "\r\n");
      return c.receive("\r\n").substr(9, 3);
    };
    CHECK(raw("aUTHORIZATION: \t Bearer first \t\r\n") == "200");
    CHECK(raw("Authorization: Bearer first\r\nauthorization: Bearer first\r\n") == "401");
    CHECK(raw("X: Authorization: Bearer first\r\n") == "401");
    CHECK(raw("Authorization: Bearer \r\n") == "401");
  }
  for (const char* wrong : {"Bearer firs", "Bearer firstt", "Bearer", "first", "bearer firs", "Basic first"})
    CHECK(status(wrong) == 401);
  for (const char* scheme : {"bearer", "BEARER", "bEaReR"}) CHECK(status(scheme + std::string(" first")) == 200);
  CHECK(status("Bearer First") == 401);
  for (const char* open : {"/health", "/v1/models", "/v1/models/fake", "/"}) CHECK(s.client().Get(open)->status == 200);
  for (const char* closed : {"/metrics", "/openapi.json"}) CHECK(s.client().Get(closed)->status == 401);
  CHECK(inf::same_secret("", ""));
  CHECK_FALSE(inf::same_secret("a", ""));
  CHECK_FALSE(inf::same_secret("aa", "a"));
  CHECK_FALSE(inf::same_secret("", "a"));
}

TEST_CASE("health is 503 until the engine runs, and metrics count what it did", "[infer][serve]") {
  served::service s({}, 64, {.max_running = 16}, false);
  CHECK(s.client().Get("/health")->status == 503);
  CHECK(s.client().Get("/v1/models")->status == 200);
  const httplib::Result early = s.client().Post(completions, small_call().dump(), "application/json");
  CHECK(early->status == 503);
  CHECK(early->get_header_value("Retry-After") == "1");
  s.start();
  CHECK(s.client().Get("/health")->status == 200);
  CHECK(s.post(completions, small_call({{"n", 3}})).first == 200);
  CHECK(served::service::soon([&] { return s.queue.statistics().counts().answer_tokens == 24; }));  // published last
  CHECK(s.queue.statistics().ended(inf::finish_reason::length) == 3);
  const std::string text = s.client().Get("/metrics")->body;
  for (const char* line :
       {"heddle:num_requests_running{model_name=\"fake\"} ", "heddle:num_requests_waiting{model_name=\"fake\"} 0\n",
        "heddle:kv_cache_usage_perc{", "heddle:prefix_cache_queries_total{", "heddle:num_preemptions_total{",
        "heddle:request_success_total{model_name=\"fake\",finished_reason=\"length\"} 3\n",
        "heddle:time_to_first_token_seconds_count{model_name=\"fake\"} 3\n",
        "heddle:time_to_first_token_seconds_bucket{model_name=\"fake\",le=\"+Inf\"} 3\n",
        "heddle:inter_token_latency_seconds_count{model_name=\"fake\"} 21\n",
        "heddle:generation_tokens_total{model_name=\"fake\"} 24\n",
        "heddle:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"fake\",position=\"0\"} 0\n",
        "# TYPE heddle:time_to_first_token_seconds histogram\n"})
    CHECK_THAT(text, Contains(line));
  CHECK(json::parse(s.client().Get("/openapi.json")->body)["openapi"] == "3.1.0");
  CHECK_THAT(s.client().Get("/")->body, Contains("<html"));
  CHECK(s.client().Head("/health")->status == 200);
}

TEST_CASE("when as many requests wait as may, further ones are told to come again", "[infer][serve]") {
  served::service s({}, 1, {.max_running = 1});
  s.runner.delay_ms = 5;
  std::vector<int> status(2, 0);
  const auto call = [&](std::size_t i) { status[i] = s.post(completions, small_call({{"max_tokens", 50}})).first; };
  std::thread runs(call, 0);
  CHECK(served::service::soon([&] { return s.queue.statistics().counts().running == 1; }));
  s.runner.held = true;
  std::thread waits(call, 1);
  CHECK(served::service::soon([&] { return s.queue.waiting() == 1; }));
  const httplib::Result r = s.client().Post(completions, small_call().dump(), "application/json");
  REQUIRE(r);
  CHECK(r->status == 429);
  CHECK(r->get_header_value("Retry-After") == "1");
  CHECK(json::parse(r->body)["error"]["code"] == "queue_full");
  s.runner.held = false;
  runs.join();
  waits.join();
  CHECK(status == std::vector<int>{200, 200});
  CHECK(s.post(completions, small_call()).first == 200);
  CHECK_THAT(s.client().Get("/metrics")->body, Contains("heddle:requests_refused_total{model_name=\"fake\"} 1\n"));
}

TEST_CASE("when constrained answers that run take as much memory as they may, further ones are told to come again",
          "[infer][serve]") {
  served::service s({.masks = {.table_bytes = 24'000}}, 64, {.max_running = 16, .end_tokens = {3}});
  const auto call = [](const char* pattern) {
    return small_call({{"response_format", {{"type", "regex"}, {"regex", pattern}}}});
  };
  s.runner.held = true;
  std::vector<int> status(2, 0);
  std::thread first([&] { status[0] = s.post(completions, call("[ab]{1000}")).first; });
  CHECK(served::service::soon([&] { return s.queue.waiting() == 1; }));
  const httplib::Result r = s.client().Post(completions, call("[cd]{1000}").dump(), "application/json");
  REQUIRE(r);
  CHECK(r->status == 429);
  CHECK(r->get_header_value("Retry-After") == "1");
  const json error = json::parse(r->body)["error"];
  CHECK(error["code"] == "grammars_busy");
  CHECK(error["type"] == "rate_limit_error");
  CHECK_THAT(error["message"].get<std::string>(), Contains("of answers that run or wait take"));
  std::thread same([&] { status[1] = s.post(completions, call("[ab]{1000}")).first; });
  CHECK_THAT(s.client().Get("/metrics")->body, Contains("heddle:requests_refused_total{model_name=\"fake\"} 1\n"));
  s.runner.held = false;
  first.join();
  same.join();
  CHECK(status == std::vector<int>{200, 200});
  CHECK(s.post(completions, call("[cd]{1000}")).first == 200);
}

TEST_CASE("an engine that fails ends the requests it has with 500, and serves the next", "[infer][serve]") {
  served::service s;
  s.runner.failures = 1;
  const auto [status, body] = s.post(completions, small_call());
  CHECK(status == 500);
  CHECK_THAT(body["error"]["message"].get<std::string>(), Contains("the runner failed"));
  CHECK(s.post(completions, small_call()).first == 200);
  s.runner.failures = 1;
  const httplib::Result r = s.client().Post(completions, small_call({{"stream", true}}).dump(), "application/json");
  REQUIRE(r);
  CHECK_THAT(r->body, Contains("\"error\"") && !Contains("[DONE]"));
  CHECK(s.post(completions, small_call()).first == 200);
  s.runner.failures = 100;  // three steps in turn: there is no engine any more
  for (int i = 0; i < 3; ++i) CHECK(s.post(completions, small_call()).first == 500);
  CHECK(served::service::soon([&] { return s.queue.state() == inf::queue_state::closed; }));
  CHECK(s.post(completions, small_call()).first == 503);
  CHECK(s.client().Get("/health")->status == 503);
}

TEST_CASE("a client that leaves ends its request, whole or streamed, and its blocks are free", "[infer][serve]") {
  served::service s;
  s.runner.delay_ms = 50;  // three seconds for all tokens
  for (const bool stream : {false, true}) {
    const std::int64_t before = s.queue.statistics().ended(inf::finish_reason::cancelled);
    {
      raw_client c(s.server.port());
      c.call(completions, small_call({{"max_tokens", 60}, {"stream", stream}, {"ignore_eos", true}}));
      if (stream) CHECK_THAT(c.receive("data: "), Contains("data: "));
      CHECK(served::service::soon([&] { return s.queue.statistics().counts().running == 1; }));
    }
    CHECK(
        served::service::soon([&] { return s.queue.statistics().ended(inf::finish_reason::cancelled) == before + 1; }));
    CHECK(served::service::soon([&] { return s.queue.statistics().counts().cache.used == 0; }));
  }
}

TEST_CASE("a client that ends its side after the request gets the whole answer, and one that then leaves ends it",
          "[infer][serve]") {
  served::service s;
  s.runner.delay_ms = 20;
  for (const bool stream : {false, true}) {
    CAPTURE(stream);
    const json call = small_call({{"max_tokens", 30}, {"stream", stream}, {"ignore_eos", true}});
    const auto counted = [&](inf::finish_reason f) { return s.queue.statistics().ended(f); };
    const std::int64_t finished = counted(inf::finish_reason::length);
    raw_client c(s.server.port());
    c.call(completions, call);
    c.end_sending();
    const std::string answer = c.receive();
    if (stream)
      CHECK_THAT(answer, Contains("data: [DONE]"));
    else
      CHECK_THAT(answer, Contains("HTTP/1.1 200") && Contains("\"finish_reason\":\"length\""));
    CHECK(served::service::soon([&] { return counted(inf::finish_reason::length) == finished + 1; }));
    const std::int64_t cancelled = counted(inf::finish_reason::cancelled);
    {
      raw_client leaves(s.server.port());
      leaves.call(completions, call);
      leaves.end_sending();
      CHECK(served::service::soon([&] { return s.queue.statistics().counts().running == 1; }));
    }
    CHECK(served::service::soon([&] { return counted(inf::finish_reason::cancelled) == cancelled + 1; }));
  }
}

namespace {
// The server's listening socket among the files of this process.
int listening_socket(int port) {
  for (int fd = 0; fd < 4096; ++fd) {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) continue;
    sockaddr_in a{};
    size = sizeof a;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &size) == 0 && ntohs(a.sin_port) == port) return fd;
  }
  return -1;
}
}  // namespace

TEST_CASE("a server that has no file left for a connection accepts it when there is one again", "[infer][serve]") {
  served::service s;
  const raw_client early(s.server.port());  // its own file is there before
  early.send("GET /health HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK_THAT(early.receive("ok"), Contains("200"));
  const int mine = ::socket(AF_INET, SOCK_STREAM, 0);
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 0;  // no further file
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<std::uint16_t>(s.server.port()));
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool connected = ::connect(mine, reinterpret_cast<const sockaddr*>(&a), sizeof a) == 0;
  const std::string text = "GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
  ::send(mine, text.data(), text.size(), MSG_NOSIGNAL);
  char buffer[256] = {};
  timeval short_time{.tv_sec = 0, .tv_usec = 300'000};
  ::setsockopt(mine, SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof short_time);
  const ssize_t nothing = ::recv(mine, buffer, sizeof buffer, 0);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(connected);
  CHECK(nothing < 0);  // it waits
  short_time.tv_sec = 20;
  ::setsockopt(mine, SOL_SOCKET, SO_RCVTIMEO, &short_time, sizeof short_time);
  const ssize_t n = ::recv(mine, buffer, sizeof buffer, 0);
  ::close(mine);
  REQUIRE(n > 0);
  CHECK_THAT(std::string(buffer, static_cast<std::size_t>(n)), Contains("HTTP/1.1 200"));
  CHECK(s.server.failure() == "");
}

TEST_CASE("a server whose listening fails says so, finishes what runs, and lets the engine end", "[infer][serve]") {
  served::service s;
  s.runner.delay_ms = 20;
  raw_client c(s.server.port());
  c.call(completions, small_call({{"max_tokens", 20}, {"ignore_eos", true}}));
  CHECK(served::service::soon([&] { return s.queue.statistics().counts().running == 1; }));
  const int fd = listening_socket(s.server.port());
  REQUIRE(fd >= 0);
  ::shutdown(fd, SHUT_RDWR);
  CHECK(served::service::soon([&] { return s.server.failure() != ""; }));
  CHECK_THAT(s.server.failure(), Contains("heddle: the server on port " + std::to_string(s.server.port()) +
                                          " cannot accept connections: Invalid argument"));
  CHECK_THAT(c.receive("\"usage\""), Contains("\"finish_reason\":\"length\""));
  CHECK(served::service::soon([&] { return s.queue.state() == inf::queue_state::closed; }));  // run_engine returned
}

TEST_CASE("a bias of a token that the model has not is refused", "[infer][serve]") {
  served::service s;
  CHECK(s.post(completions, small_call({{"logit_bias", {{"904", 1}}}})).first == 200);
  const auto [status, body] = s.post(completions, small_call({{"logit_bias", {{"905", 1}}}}));
  CHECK(status == 400);
  CHECK(body["error"]["param"] == "logit_bias");
  CHECK_THAT(body["error"]["message"].get<std::string>(), Contains("below 905") && Contains("got 905"));
}

TEST_CASE("many clients at once, some of which leave, get the answers of requests alone", "[infer][serve]") {
  const std::uint32_t seed = std::random_device{}();
  CAPTURE(seed);
  served::service s({}, 1000);
  constexpr int threads = 12, calls = 8;
  std::vector<std::string> wrong(threads);
  std::vector<std::thread> clients;
  const io::tokenizer t = served::golden_tokenizer();
  for (int i = 0; i < threads; ++i)
    clients.emplace_back([&, i] {
      std::mt19937 random(seed + static_cast<std::uint32_t>(i));
      for (int k = 0; k < calls; ++k) {
        inf::request r{.max_tokens = fake::between(random, 1, 30), .sampling = {.seed = random()}};
        for (std::int64_t n = fake::between(random, 1, 20); n > 0; --n)
          r.prompt.push_back(static_cast<std::int32_t>(n % 3 == 0 ? fake::between(random, 0, 899) : n));
        const bool stream = fake::between(random, 0, 1) == 1;
        const json call{
            {"prompt", r.prompt}, {"max_tokens", r.max_tokens}, {"seed", *r.sampling.seed}, {"stream", stream}};
        if (fake::between(random, 0, 3) == 0) {  // leaves
          raw_client c(s.server.port());
          c.call(completions, call);
          if (stream) c.receive("data: ");
          continue;
        }
        const httplib::Result got = s.client().Post(completions, call.dump(), "application/json");
        const fake::answer a = fake::alone(r, {.vocabulary = served::room.vocabulary}, served::room.context);
        const std::string expected = t.decode(a.tokens, {.skip_special_tokens = true});
        std::string text = "nothing";
        if (got && got->status == 200 && !stream) text = json::parse(got->body)["choices"][0]["text"];
        if (got && got->status == 200 && stream) {
          text.clear();
          for (std::size_t at = 0; (at = got->body.find("data: {", at)) != std::string::npos; ++at)
            text += json::parse(got->body.substr(at + 6, got->body.find("\n\n", at) - at - 6))["choices"][0]["text"];
        }
        if (text != expected) wrong[static_cast<std::size_t>(i)] += "expected '" + expected + "', got '" + text + "'\n";
      }
    });
  for (std::thread& c : clients) c.join();
  for (const std::string& w : wrong) CHECK(w == "");
  CHECK(served::service::soon([&] {
    const inf::engine_counts c = s.queue.statistics().counts();
    return c.running == 0 && c.waiting == 0 && c.cache.used == 0 && s.queue.waiting() == 0;
  }));
  s.stop();
  CHECK(s.counts.cache.used == 0);
  CHECK(s.counts.submitted == s.counts.ended);
  CHECK(s.failure == "");
}

TEST_CASE("slow clients are told that their time is over, and hold up nobody", "[infer][serve]") {
  inf::server_options o;
  o.header_timeout = o.body_timeout = std::chrono::milliseconds(1000);
  o.most_connections = 4;
  served::service s(o);
  raw_client silent(s.server.port()), header(s.server.port()), line(s.server.port()), body(s.server.port());
  line.send("GET /hea");
  header.send("GET /health HTTP/1.1\r\nHost: ");
  body.send("POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{");
  CHECK_THAT(line.receive(), Contains("408"));
  CHECK_THAT(header.receive(), Contains("408"));
  CHECK_THAT(body.receive(), Contains("408") && Contains("request_timeout"));
  CHECK(s.post(completions, small_call()).first == 200);
}

TEST_CASE("a server that stops finishes what runs, refuses what comes, and ends", "[infer][serve]") {
  served::service s;
  s.runner.held = true;  // nothing ends before it is let go
  std::string body;
  std::thread caller([&] {
    const httplib::Result r =
        s.client().Post(completions, small_call({{"max_tokens", 40}, {"stream", true}, {"ignore_eos", true}}).dump(),
                        "application/json");
    if (r) body = r->body;
  });
  CHECK(served::service::soon([&] { return s.queue.waiting() == 1; }));
  raw_client idle(s.server.port());
  std::thread stopper([&] { s.server.stop(); });
  CHECK(served::service::soon([&] { return s.queue.state() != inf::queue_state::open; }));
  CHECK(s.post(completions, small_call()).first == 503);
  CHECK(s.client().Get("/health")->status == 503);
  s.runner.held = false;
  caller.join();
  stopper.join();
  s.stop();
  const std::vector<json> events = events_of(body);
  REQUIRE_FALSE(events.empty());
  CHECK(events.back()["choices"][0]["finish_reason"] == "length");
  CHECK(s.counts.cache.used == 0);
  CHECK_FALSE(s.client().Get("/health"));
  CHECK(idle.receive() == "");
}

TEST_CASE("what does not end in time when a server stops is ended with an error", "[infer][serve]") {
  inf::server_options o;
  o.drain_timeout = std::chrono::milliseconds(50);
  served::service s(o);
  s.runner.delay_ms = 100;  // six seconds for all tokens
  std::string body;
  std::thread caller([&] {
    const httplib::Result r =
        s.client().Post(completions, small_call({{"max_tokens", 60}, {"stream", true}, {"ignore_eos", true}}).dump(),
                        "application/json");
    if (r) body = r->body;
  });
  CHECK(served::service::soon([&] { return s.queue.statistics().counts().running == 1; }));
  s.stop();
  caller.join();
  CHECK_THAT(body, Contains("shutting down") && Contains("\"error\""));
  CHECK(s.counts.cache.used == 0);
}

TEST_CASE("a server on a port that is in use says so", "[infer][serve]") {
  served::service s;
  inf::request_queue queue;
  inf::server_options o;
  o.port = s.server.port();
  CHECK_THROWS_WITH(inf::server(queue, served::golden_tokenizer(), o), Contains(std::to_string(o.port)));
}

TEST_CASE("options with which a server could answer nobody, or everybody, are refused", "[infer][serve]") {
  inf::request_queue queue;
  inf::server_options nobody, everybody;
  nobody.most_connections = 0;
  inf::server_options nothing;
  nothing.most_answer_tokens = 0;
  CHECK_THROWS_WITH(inf::server(queue, served::golden_tokenizer(), nothing),
                    Contains("most_answer_tokens of at least 1"));
  everybody.keys = {"a", ""};
  CHECK_THROWS_WITH(inf::server(queue, served::golden_tokenizer(), nobody), Contains("at least 1, got 0"));
  for (const int port : {-1, 65536, 99999}) {
    inf::server_options beyond;
    beyond.port = port;
    CHECK_THROWS_WITH(inf::server(queue, served::golden_tokenizer(), beyond),
                      Contains("port should be from 0 to 65535, got " + std::to_string(port)));
  }
  CHECK_THROWS_WITH(inf::server(queue, served::golden_tokenizer(), everybody), Contains("must not be empty"));
}

TEST_CASE("idle connections end where others wait for a thread, not where one begins", "[infer][serve]") {
  std::atomic<bool> go_on{false};
  const auto wait = [&] {
    while (!go_on) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  inf::detail::connection_threads threads(40);
  int too_early = 0;
  for (int i = 0; i < 40; ++i) {
    threads.enqueue(wait);
    too_early += threads.short_of_threads() ? 1 : 0;
  }
  CHECK(too_early == 0);
  threads.enqueue(wait);
  CHECK(threads.short_of_threads());
  go_on = true;
  threads.shutdown();
  CHECK_FALSE(threads.short_of_threads());
}

TEST_CASE("a server renders the folder's template, tells calls of tools, and lives where the template refuses",
          "[infer][serve]") {
  inf::server_options o = served::local();
  o.chat = {std::nullopt, "own",
            inf::rendered_template{.source = io::chat_template("{% if messages | length > 1 %}\n{{ raise_exception('one') }}"
                                                               "{% endif %}{{ messages[0].content }}"),
                                   .calls = inf::tool_call_format::hermes}};
  served::service s({}, 64, {.max_running = 16, .end_tokens = {3}});
  inf::request_queue& queue = s.queue;
  inf::server own(queue, served::golden_tokenizer(), o);
  httplib::Client client("127.0.0.1", own.port());
  client.set_read_timeout(20, 0);
  json call{{"messages", json::array({{{"role", "user"}, {"content", "hi"}}})},
            {"tools", json::array({{{"type", "function"}, {"function", {{"name", "f"}}}}})},
            {"regex", "<tool_call>\\{\"name\":\"f\"\\}</tool_call>"}};
  const httplib::Result whole = client.Post(chats, call.dump(), "application/json");
  REQUIRE(whole);
  CAPTURE(whole->body);
  REQUIRE(whole->status == 200);
  const json choice = json::parse(whole->body)["choices"][0];
  CHECK(choice["finish_reason"] == "tool_calls");
  CHECK(choice["message"]["content"].is_null());
  CHECK(choice["message"]["tool_calls"][0]["function"] == json{{"name", "f"}, {"arguments", "{}"}});
  CHECK(choice["message"]["tool_calls"][0]["id"].get<std::string>().size() == 9);
  call["stream"] = true;
  const httplib::Result streamed = client.Post(chats, call.dump(), "application/json");
  REQUIRE(streamed);
  json calls = json::array();
  std::string content, finish;
  for (const json& event : events_of(streamed->body)) {
    const json& delta = event["choices"][0]["delta"];
    if (delta.contains("tool_calls")) calls.push_back(delta["tool_calls"][0]);
    if (delta.contains("content") && delta["content"].is_string()) content += delta["content"].get<std::string>();
    if (event["choices"][0]["finish_reason"].is_string()) finish = event["choices"][0]["finish_reason"];
  }
  REQUIRE(calls.size() == 1);
  CHECK(calls[0]["index"] == 0);
  CHECK(calls[0]["function"]["name"] == "f");
  CHECK(content.empty());
  CHECK(finish == "tool_calls");
  call["messages"].push_back({{"role", "user"}, {"content", "again"}});
  const httplib::Result refused = client.Post(chats, call.dump(), "application/json");
  REQUIRE(refused);
  CHECK(refused->status == 400);
  CHECK_THAT(refused->body, Contains("chat template, line 2: the template refuses: one") && Contains("chat_template_error"));
  call["messages"].erase(1);
  CHECK(client.Post(chats, call.dump(), "application/json")->status == 200);
}

TEST_CASE("a client of HTTP/1.0 is told that it cannot have a stream", "[infer][serve]") {
  served::service s;
  raw_client old(s.server.port());
  const std::string body = small_call({{"stream", true}}).dump();
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body);
  CHECK_THAT(old.receive(), Contains("400") && Contains("a stream needs HTTP/1.1"));
}
#endif
