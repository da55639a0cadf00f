//! The native half of the Python package: handles of stores, versions and uploads, whose methods
//! move bytes without holding the interpreter's lock. Option names, URLs and the file system are
//! handled in Python; this module knows a store, a key and a version.

mod answer;
mod described;
mod errors;
mod process;
mod reader;
mod safe;
mod shared;
mod store;
mod upload;
mod version;

use pyo3::prelude::*;

/// `shale._native`
#[pymodule]
mod _native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::reader::Reader;
    #[pymodule_export]
    use super::store::Store;
    #[pymodule_export]
    use super::upload::Upload;
    #[pymodule_export]
    use super::version::Version;

    #[pyfunction]
    fn _end_visits(py: Python<'_>) {
        super::process::end_visits(py);
    }

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let end = module.getattr("_end_visits")?;
        module.py().import("atexit")?.call_method1("register", (end,))?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
