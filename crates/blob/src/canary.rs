//! Planted bugs that test the tests. With the feature `canaries`, a test plants one by name, for
//! its own thread only; without it, every check for one is `false` at compile time.

/// Returns whether the bug of this name is planted.
#[cfg(not(feature = "canaries"))]
#[macro_export]
#[doc(hidden)]
macro_rules! canary {
    ($name:literal) => {
        false
    };
}

/// Returns whether the bug of this name is planted.
#[cfg(feature = "canaries")]
#[macro_export]
#[doc(hidden)]
macro_rules! canary {
    ($name:literal) => {
        $crate::canary::planted($name)
    };
}

#[cfg(feature = "canaries")]
thread_local! {
    static PLANTED: std::cell::RefCell<Option<&'static str>> = const { std::cell::RefCell::new(None) };
}

/// Plants a bug in all code that this thread runs; `None` removes it.
#[cfg(feature = "canaries")]
pub fn plant(name: Option<&'static str>) {
    PLANTED.with_borrow_mut(|planted| *planted = name);
}

/// Returns whether the bug of this name is planted.
#[cfg(feature = "canaries")]
#[doc(hidden)]
pub fn planted(name: &str) -> bool {
    PLANTED.with_borrow(|planted| planted.is_some_and(|planted| planted == name))
}
