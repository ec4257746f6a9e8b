import gradio

with gradio.Blocks() as demo:
    gradio.Markdown("# Hello from Gradio")

demo.launch()
