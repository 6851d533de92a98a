"""What people read: one module a form. Renderers never judge; they say what a decision holds."""
