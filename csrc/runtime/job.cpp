#include "runtime/job.h"

#include <algorithm>

namespace loom::rt {

namespace {

[[noreturn]] void refuse(const std::string& what) { throw LaunchError("job: " + what); }

std::string range(std::uint64_t from, std::uint64_t bytes) {
  return std::to_string(from) + ".." + std::to_string(from + bytes);
}

}  // namespace

std::shared_ptr<Job> Job::make(std::vector<JobStep> steps, std::vector<chip::ArgValue> own,
                               std::uint64_t pool_bytes) {
  if (steps.empty()) refuse("has no steps");
  std::shared_ptr<Job> job(new Job);
  job->steps_ = std::move(steps);
  job->own_ = std::move(own);
  job->pool_bytes_ = pool_bytes;
  for (chip::ArgValue& a : job->own_) a.between = true;
  job->lives_.assign(job->own_.size(), {job->steps_.size(), 0});
  for (std::size_t i = 0; i < job->steps_.size(); ++i) {
    const JobStep& step = job->steps_[i];
    const std::string name = "step " + std::to_string(i) + " ('" + step.plan->name() + "')";
    if (&step.plan->card() != &job->steps_[0].plan->card()) refuse(name + " belongs to another card");
    if (step.args.size() != step.plan->args().size())
      refuse(name + " has " + std::to_string(step.args.size()) + " arguments, its program takes " +
             std::to_string(step.plan->args().size()));
    for (std::size_t a = 0; a < step.args.size(); ++a) {
      const JobArg& arg = step.args[a];
      const chip::ArgInfo& info = step.plan->args()[a];
      if ((arg.kind == JobArg::Kind::Number) != (info.kind != 0))
        refuse(name + ": argument '" + info.name + "' must be a " + (info.kind != 0 ? "number" : "buffer"));
      job->numbers_ += arg.kind == JobArg::Kind::Number;
      if (arg.kind == JobArg::Kind::External) job->externals_ = std::max(job->externals_, arg.index + 1);
      if (arg.kind != JobArg::Kind::Own) continue;
      if (arg.index >= job->own_.size()) refuse(name + " names a buffer that the job has not");
      Life& life = job->lives_[arg.index];
      if (life.first > i && (info.access & 1) != 0)
        refuse(name + " reads argument '" + info.name + "', which no step before it writes");
      life.first = std::min(life.first, i);
      life.last = i;
    }
  }
  job->check();
  return job;
}

void Job::check() const {
  const auto cores = static_cast<std::uint64_t>(settings().cores);
  const auto lx = static_cast<std::uint64_t>(settings().lx_bytes);
  for (std::size_t b = 0; b < own_.size(); ++b) {
    const chip::ArgValue& a = own_[b];
    const Life& life = lives_[b];
    if (life.first > life.last) continue;  // nobody uses it
    const std::string name = "buffer " + std::to_string(b) + " in " + (a.kept() ? "LX " : "the pool ") +
                             range(a.address, a.kept() ? a.share : a.bytes);
    if (a.address % 128 != 0 || a.share % 128 != 0) refuse(name + " does not begin and end at sticks");
    if (!a.kept() && (a.address > pool_bytes_ || a.bytes > pool_bytes_ - a.address))
      refuse(name + " leaves the pool of " + std::to_string(pool_bytes_) + " bytes");
    if (a.kept() && (a.address > lx || a.share > lx - a.address || (a.bytes + a.share - 1) / a.share > cores))
      refuse(name + " does not hold its " + std::to_string(a.bytes) + " bytes on " + std::to_string(cores) +
             " cores with " + std::to_string(lx) + " bytes of LX");
    for (std::size_t i = life.first; a.kept() && i <= life.last; ++i)
      if (a.address < static_cast<std::uint64_t>(steps_[i].plan->lx_used()))
        refuse(name + " lies in LX that step " + std::to_string(i) + " ('" + steps_[i].plan->name() +
               "') uses itself: " + range(0, static_cast<std::uint64_t>(steps_[i].plan->lx_used())));
    for (std::size_t o = 0; o < b; ++o) {
      const chip::ArgValue& other = own_[o];
      if (other.kept() != a.kept() || lives_[o].first > life.last || life.first > lives_[o].last) continue;
      const std::uint64_t mine = a.kept() ? a.share : a.bytes, theirs = a.kept() ? other.share : other.bytes;
      if (a.address < other.address + theirs && other.address < a.address + mine)
        refuse(name + " overlaps buffer " + std::to_string(o) + ", which lives at the same time");
    }
  }
}

void Job::launch(std::span<const chip::ArgValue> externals, std::span<const std::int64_t> numbers,
                 const chip::ArgValue& pool, Stream& stream, const Origin& origin) const {
  if (externals.size() != externals_ || numbers.size() != numbers_)
    refuse("takes " + std::to_string(externals_) + " buffers and " + std::to_string(numbers_) +
           " numbers, got " + std::to_string(externals.size()) + " and " + std::to_string(numbers.size()));
  if (pool.bytes < pool_bytes_)
    refuse("needs a pool of " + std::to_string(pool_bytes_) + " bytes, got " + std::to_string(pool.bytes));
  Batch batch(stream, true);
  thread_local std::vector<chip::ArgValue> args;
  thread_local std::vector<LxRange> fresh;
  std::size_t next = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    args.clear();
    fresh.clear();
    for (const JobArg& arg : steps_[i].args) {
      chip::ArgValue value;
      if (arg.kind == JobArg::Kind::Number) {
        value.number = numbers[next++];
      } else if (arg.kind == JobArg::Kind::External) {
        value = externals[arg.index];
      } else {
        value = own_[arg.index];
        if (!value.kept()) value.address += pool.address;
        const bool first = value.kept() && lives_[arg.index].first == i;
        const auto known = [&](const LxRange& r) { return r.address == value.address; };
        if (first && std::none_of(fresh.begin(), fresh.end(), known))
          fresh.push_back({value.address, value.share});
      }
      args.push_back(value);
    }
    batch.add(steps_[i].plan, args, origin, fresh);
  }
  batch.submit();
}

}  // namespace loom::rt
