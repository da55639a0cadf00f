//! Planted bugs, for the test of the tests: with the feature `canaries`, the tests choose one by name; without it, every question
//! whether one is planted is answered no at compile time.

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
        $crate::canary::planted($name)
    };
}

#[cfg(feature = "canaries")]
thread_local! {
    static PLANTED: std::cell::RefCell<Option<&'static str>> = const { std::cell::RefCell::new(None) };
}

/// Plants a bug in everything that this thread runs from now on; `None` takes it out.
#[cfg(feature = "canaries")]
pub fn plant(name: Option<&'static str>) {
    PLANTED.with_borrow_mut(|planted| *planted = name);
}

/// Tells whether the bug of this name is planted.
#[cfg(feature = "canaries")]
#[doc(hidden)]
pub fn planted(name: &str) -> bool {
    PLANTED.with_borrow(|planted| planted.is_some_and(|planted| planted == name))
}
