//! The `shale` command. Everything is in the library, so that tests reach it.

#[global_allocator]
static ALLOCATOR: env::Allocator = env::Allocator;

fn main() -> std::process::ExitCode {
    shale::run()
}
