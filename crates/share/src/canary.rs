//! Planted bugs, for the test of the tests (`tests/tree/canaries.rs`): with the feature `canaries`,
//! a test chooses one by name; without it, every question whether one is planted is answered no at
//! compile time.

#[cfg(all(feature = "canaries", not(debug_assertions)))]
compile_error!("the feature `canaries` plants bugs: it is for tests with debug assertions, never for a release build");

/// Tells whether the bug of this name is planted.
#[cfg(not(feature = "canaries"))]
#[macro_export]
#[doc(hidden)]
macro_rules! canary {
    ($name:literal) => {
        false
    };
}

/// Tells whether the bug of this name is planted.
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

/// Plants a bug in everything that this thread runs from now on; `None` takes it out.
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

/// Tells whether the bug of this name is planted.
#[cfg(feature = "canaries")]
#[doc(hidden)]
pub fn is_planted(name: &str) -> bool {
    PLANTED.get() == Some(name) || EVERYWHERE.get().is_some_and(|planted| planted == name)
}

/// Called when a change has gone to the journal and is not answered yet.
#[cfg(feature = "canaries")]
pub static AFTER_KEEPING: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();
