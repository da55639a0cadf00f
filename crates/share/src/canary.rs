//! Planted bugs, for testing the tests (`tests/tree/canaries.rs`): with the feature `canaries`, a
//! test selects one by name; without it, every check for a planted bug is false at compile time.

#[cfg(all(feature = "canaries", not(debug_assertions)))]
compile_error!("the feature `canaries` plants bugs: it is for tests with debug assertions, never for a release build");

/// Returns whether the bug with this name is planted.
#[cfg(not(feature = "canaries"))]
#[macro_export]
#[doc(hidden)]
macro_rules! canary {
    ($name:literal) => {
        false
    };
}

/// Returns whether the bug with this name is planted.
#[cfg(feature = "canaries")]
#[macro_export]
#[doc(hidden)]
macro_rules! canary {
    ($name:literal) => {
        $crate::canary::is_planted($name)
    };
}

#[cfg(feature = "canaries")]
thread_local! {
    static PLANTED: std::cell::Cell<Option<&'static str>> = const { std::cell::Cell::new(None) };
}

/// Plants a bug in everything that this thread runs from now on; `None` removes it.
#[cfg(feature = "canaries")]
pub fn plant(name: Option<&'static str>) {
    PLANTED.set(name);
}

/// The bug of all threads.
#[cfg(feature = "canaries")]
static EVERYWHERE: std::sync::OnceLock<String> = std::sync::OnceLock::new();

/// Plants a bug in this process, once and for all.
#[cfg(feature = "canaries")]
pub fn plant_everywhere(name: String) {
    let _ = EVERYWHERE.set(name);
}

/// Returns whether the bug with this name is planted.
#[cfg(feature = "canaries")]
#[doc(hidden)]
pub fn is_planted(name: &str) -> bool {
    PLANTED.get() == Some(name) || EVERYWHERE.get().is_some_and(|planted| planted == name)
}

/// Called when a change has been journalled but not yet answered.
#[cfg(feature = "canaries")]
pub static AFTER_KEEPING: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();
