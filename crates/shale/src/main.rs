//! The `shale` command. All code is in the library, so that tests can reach it.

#[global_allocator]
static ALLOCATOR: env::Allocator = env::Allocator;

fn main() -> std::process::ExitCode {
    abort_on_panic();
    shale::run()
}

/// A thread that panicked may have left shared state half changed. Unwinding would let the other
/// threads continue with it, so the process ends and the next one recovers. A hook, not `panic =
/// "abort"`: tests unwind, and dependencies are compiled once for both; and a share's names are read
/// in steps that a panic ends as an error does, if they are damaged or from elsewhere.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        if share::contains_panics() {
            return;
        }
        report(info);
        std::process::abort();
    }));
}
